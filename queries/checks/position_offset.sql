-- id: position.offset
-- title: Shifted positions cost nothing
-- severity: warning
-- certainty: possible
-- requires: drafts, position_stats
-- causes: position.offset
-- about: A shift where depth 2 and deeper are drafted leaves depth 1 alone: it costs something where the rates below
--        depth 1 fall behind it. SGLang before 0.5.13 gives those depths a position one too far, which costs little.
-- param recurrence_share: float = 0.5, share of the rate at depth 1 below which a deeper rate has collapsed
-- param min_rounds: int = 30, drafts at depth 2 below which nothing is said
-- references: sglang#25015
WITH o AS (
    SELECT coalesce(sum(drafts), 0) AS n, coalesce(sum(drafts) FILTER (WHERE shift <> 0), 0) AS shifted,
           arg_max(shift, drafts) FILTER (WHERE shift <> 0) AS shift,
           coalesce(try_cast(string_split(fact('engine.version'), '.') AS INT[]) < [0, 5, 13], FALSE) AS older
    FROM rope_offsets
),
g AS (FROM o, depth_rates)
SELECT
    CASE WHEN n = 0 THEN 'unknown' WHEN 2 * shifted <= n OR (older AND shift = 1) THEN 'ok'
         WHEN n2 < $min_rounds THEN 'unknown' WHEN high_2 < $recurrence_share * low_1 THEN 'alarm' ELSE 'ok' END AS status,
    'positions' AS subject,
    CASE WHEN n = 0 THEN concat('positions given to the draft were not recorded (captured graphs hide them): send',
                                ' requests to a server with EAGLETRACE_LEVEL=tokens and --disable-cuda-graph')
         WHEN 2 * shifted <= n THEN 'the draft''s positions are those of training in most drafts'
         WHEN older AND shift = 1 THEN 'the draft''s positions are one too far, as always in this release of the engine'
         WHEN n2 < $min_rounds
             THEN concat('the draft''s positions are off by ', shift, '; too few drafts at depth 2 were reached to see',
                         ' what it costs (', n2, '; ', $min_rounds, ' would do): send requests')
         ELSE concat('the draft''s positions are off by ', shift, '; at depth 1 ', a1, ' of ', n1,
                     ' drafts were accepted, at depth 2 ', a2, ' of ', n2) END AS reason,
    json_object('drafts', n, 'shifted', shifted, 'shift', shift, 'reached_1', n1, 'accepted_1', a1, 'reached_2', n2,
                'accepted_2', a2, 'low_1', low_1, 'high_2', high_2) AS evidence
FROM g
