-- title: The position past which first drafts are accepted least often for what they are before it; at most one row
-- kind: macro
-- needs: rounds, requests
-- about: position_cliff(10, 3): of positions with at least 10 rounds before and past them, for at least 3 prompts.
--        Looks at requests that begin before the position and go on past it, so that long prompts are not taken for
--        long sequences. Positions in 64 steps. No row: no request goes on for long enough.
-- column position_from: the position
-- column prompts: different prompts of requests on both sides
-- column rounds, accepted: rounds past it, and those in which the first draft was accepted; before_: up to it
(least_rounds, least_prompts) AS TABLE
WITH r AS (
    SELECT host, pid, request_seq, position, accepted > 0 AS a
    FROM rounds WHERE drafted > 0 AND accepted IS NOT NULL AND position IS NOT NULL
),
widths AS (SELECT max(position) // 64 + 1 AS step FROM r),
counts AS (
    SELECT host, pid, request_seq, position // step AS bucket, step, min(position) AS lowest, count(*) AS n,
           count(*) FILTER (WHERE a) AS a
    FROM r, widths GROUP BY ALL
),
b AS (
    SELECT c.host, c.pid, c.request_seq, coalesce(q.prompt_hash, concat_ws('/', c.host, c.pid, c.request_seq)) AS prompt,
           min(c.lowest) OVER (PARTITION BY c.host, c.pid, c.request_seq) AS first, c.bucket, c.step, c.n, c.a
    FROM counts c LEFT JOIN requests q ON q.host = c.host AND q.pid = c.pid AND q.request_seq = c.request_seq
),
edges AS (SELECT DISTINCT bucket * step AS edge, step FROM b),
crossing AS (
    SELECT DISTINCT e.edge, b.host, b.pid, b.request_seq
    FROM edges e JOIN b ON b.first < e.edge AND b.bucket * b.step >= e.edge
),
sides AS (
    SELECT c.edge, count(DISTINCT prompt) AS prompts,
        sum(n) FILTER (WHERE b.bucket * b.step < c.edge) AS n0, sum(a) FILTER (WHERE b.bucket * b.step < c.edge) AS a0,
        sum(n) FILTER (WHERE b.bucket * b.step >= c.edge) AS n1, sum(a) FILTER (WHERE b.bucket * b.step >= c.edge) AS a1
    FROM crossing c JOIN b USING (host, pid, request_seq) GROUP BY c.edge
)
SELECT edge AS position_from, prompts, n1::BIGINT AS rounds, a1::BIGINT AS accepted, n0::BIGINT AS before_rounds,
       a0::BIGINT AS before_accepted
FROM sides WHERE n0 >= least_rounds AND n1 >= least_rounds AND prompts >= least_prompts
ORDER BY sign(a0 / n0 - a1 / n1) * (a0 / n0 - a1 / n1) ** 2 * n0 * n1 / (n0 + n1) DESC, edge
LIMIT 1
