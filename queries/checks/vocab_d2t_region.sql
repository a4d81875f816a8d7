-- id: vocab.d2t_region
-- title: No stretch of the vocabulary is drafted and never accepted
-- severity: critical
-- certainty: sure
-- requires: first_draft_tokens, contract:t2d.in_checkpoint
-- causes: vocab.d2t_mismatch
-- about: Where d2t is wrong in one region only, none of its tokens is ever accepted while the others are. Said only
--        where t2d has the map's size and contradicts it in part, because a draft may simply be bad at some tokens.
--        A stretch holds drafted tokens that follow each other in the order of target ids.
-- param dead_stretch_drafts: int = 20, first drafts in a stretch without one accepted
-- param dead_stretch_tokens: int = 8, distinct tokens in it
-- param live_rate: float = 0.3, rate that the lower bound of the other drafts exceeds
WITH f AS (
    SELECT fact('t2d.in_checkpoint') = 'true' AS in_file, fact('t2d.agreement') AS agreement,
        coalesce(fact('trace.redacted') = 'true', false) AS redacted
),
g AS (
    SELECT in_file, redacted, (agreement ->> '$.share')::DOUBLE AS share,
        (agreement ->> '$.marked')::BIGINT = (agreement ->> '$.map_length')::BIGINT AS same_size
    FROM f
),
numbered AS (
    SELECT *, count(*) FILTER (WHERE accepted > 0) OVER (ORDER BY draft_token) AS stretch FROM first_draft_tokens
),
stretches AS (
    SELECT min(draft_token) AS first_token, max(draft_token) AS last_token, sum(drafts) AS drafts
    FROM numbered WHERE accepted = 0 GROUP BY stretch
    HAVING sum(drafts) >= $dead_stretch_drafts AND count(*) >= $dead_stretch_tokens
),
dead AS (
    SELECT coalesce(sum(drafts), 0) AS drafts, min(first_token) AS low, max(last_token) AS high FROM stretches
),
everything AS (
    SELECT sum(drafts) AS drafts, sum(accepted) AS accepted FROM first_draft_tokens
),
w AS (
    SELECT g.*, dead.drafts AS dead, low, high, e.drafts, e.accepted,
        wilson(e.accepted, e.drafts - dead.drafts, -1) AS live_low
    FROM g, dead, everything e
),
x AS (SELECT *, low IS NOT NULL AND live_low > $live_rate AS broken FROM w)
SELECT
    CASE WHEN NOT in_file THEN 'not_applicable' WHEN redacted THEN 'unknown' WHEN broken AND same_size AND share < 1 THEN 'alarm'
         WHEN drafts < 3 * $dead_stretch_drafts THEN 'unknown' ELSE 'ok' END AS status,
    'd2t' AS subject,
    CASE WHEN NOT in_file THEN 'the checkpoint has no t2d that could confirm it'
         WHEN redacted THEN 'token ids are redacted, and with them the order of the vocabulary: record without EAGLETRACE_REDACT'
         WHEN broken THEN concat('none of ', dead, ' first drafts in tokens ', low, ' to ', high, ' was accepted,',
             ' of the others ', round(100 * accepted / (drafts - dead)), ' %',
             CASE WHEN same_size AND share < 1
                  THEN concat('; t2d marks only ', round(100 * share, 1), ' % of the served map')
                  ELSE '; but t2d does not contradict the map in part' END)
         WHEN drafts < 3 * $dead_stretch_drafts
             THEN concat(drafts, ' first drafts are too few to compare tokens: ', 3 * $dead_stretch_drafts, ' would do')
         ELSE 'no stretch of the draft vocabulary is left out' END AS reason,
    json_object('drafts', drafts, 'accepted', accepted, 'in_dead_stretches', dead, 'first_token', low,
                'last_token', high, 't2d_share', share, 'live_low', live_low) AS evidence
FROM x
