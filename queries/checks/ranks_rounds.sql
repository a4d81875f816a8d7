-- id: ranks.rounds
-- title: Tensor-parallel ranks agree on every round
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: batch.row
-- about: The ranks of a group run every round together, so that what they draft, want and accept is the same. Rounds
--        are matched by request and position: a rank may begin or end its recording at another moment. Trees are
--        compared where both have all their rows; in a redacted trace without their tokens. What the target would
--        have chosen off the accepted path may differ by rounding, and decides nothing.
-- references: sglang#27846
WITH ranked AS (
    SELECT coalesce(dp_rank, 0) AS dp, coalesce(pp_rank, 0) AS pp, coalesce(tp_rank, 0) AS tp,
           host, pid, round, request_seq, request_id, position, accepted
    FROM all_ranks.rounds
    WHERE counted IS NOT FALSE AND accepted IS NOT NULL
),
redacted AS (SELECT coalesce(fact('trace.redacted') = 'true', FALSE) AS tokens),
parallel AS (SELECT dp, pp FROM ranked GROUP BY ALL HAVING max(tp) > 0),
r AS (SELECT ranked.* FROM ranked SEMI JOIN parallel USING (dp, pp)),
trees AS (
    SELECT v.host, v.pid, v.round, v.request_seq, count(*) AS nodes,
           bit_xor(hash(v.node, v.parent_node, v.accepted,
                        CASE WHEN NOT redacted.tokens THEN v.draft_token END,
                        CASE WHEN NOT redacted.tokens AND (v.depth = 0 OR v.accepted) THEN v.target_token END)) AS tree
    FROM all_ranks.verifies v SEMI JOIN r USING (host, pid, round, request_seq), redacted
    GROUP BY ALL
),
s AS (SELECT r.*, t.nodes, t.tree FROM r LEFT JOIN trees t USING (host, pid, round, request_seq)),
pairs AS (
    SELECT b.dp, b.tp, b.request_id, b.position, b.round, any_value(b.accepted) AS accepted,
           min(a.accepted) AS accepted_on_rank_0,
           bool_or(a.accepted = b.accepted AND coalesce(a.nodes <> b.nodes OR a.tree = b.tree, TRUE)) AS same
    FROM s b JOIN s a ON a.dp = b.dp AND a.pp = b.pp AND a.request_id = b.request_id AND a.position = b.position
    WHERE a.tp = 0 AND b.tp > 0
    GROUP BY b.dp, b.tp, b.request_id, b.position, b.host, b.pid, b.round, b.request_seq
),
f AS (
    SELECT dp, tp, count(*) AS compared, count(*) FILTER (NOT same) AS differing,
           min({'position': position, 'request': request_id, 'accepted': accepted,
                'accepted_on_rank_0': accepted_on_rank_0}) FILTER (NOT same) AS first
    FROM pairs GROUP BY ALL
)
SELECT
    CASE WHEN differing > 0 THEN 'alarm' ELSE 'ok' END AS status,
    concat('tp rank ', tp, CASE WHEN (SELECT count(DISTINCT dp) FROM r) > 1 THEN ' of dp rank ' || dp END) AS subject,
    CASE WHEN differing > 0
         THEN concat('tensor-parallel rank ', tp, ' saw another verdict than rank 0 in ', differing, ' of ', compared,
                     ' rounds, such as request ', first.request, ' at position ', first.position, ': ', first.accepted,
                     ' correct drafts, ', first.accepted_on_rank_0, ' on rank 0')
         ELSE concat('rank ', tp, ' and rank 0 agree on ', compared, ' rounds') END AS reason,
    json_object('dp_rank', dp, 'tp_rank', tp, 'compared', compared, 'differing', differing, 'first', first) AS evidence
FROM f
UNION ALL
SELECT CASE WHEN EXISTS (FROM parallel) THEN 'unknown' ELSE 'not_applicable' END, 'ranks',
       CASE WHEN EXISTS (FROM parallel)
            THEN 'no round was recorded by two ranks; send more requests, with EAGLETRACE_LEVEL=tokens'
            ELSE 'one tensor-parallel rank' END,
       json_object('compared', 0)
WHERE NOT EXISTS (FROM f)
