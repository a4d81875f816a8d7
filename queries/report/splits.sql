-- title: Accept length by everything that a runtime varies, one scan
-- about: Intervals as in timeline.sql. The last round after a prefill holds all later ones.
-- param later: int = 16, request rounds from this one on are taken together
-- column split: row, batch_size, position, cached or request_round
-- column value: the row, the size, where the bucket of positions begins (it ends before twice that), 0 or 1, the round
-- column stderr: standard error of the accept length; NULL where only one request had such rounds
-- column first_rate: share of rounds in which the first draft was accepted, of those that drafted
WITH r AS (
    SELECT host, pid, request_seq, accepted, drafted > 0 AS drafts,
        CASE WHEN batch_size > 1 THEN row END AS row, batch_size,
        (2 ** floor(log2(greatest(position, 1))))::BIGINT AS position,
        (cached_tokens > 0)::BIGINT AS cached, least(request_round, $later) AS request_round
    FROM rounds
    WHERE accepted IS NOT NULL
),
parts AS (
    SELECT
        CASE grouping(row, batch_size, position, cached, request_round)
            WHEN 15 THEN 'row' WHEN 23 THEN 'batch_size' WHEN 27 THEN 'position' WHEN 29 THEN 'cached'
            ELSE 'request_round' END AS split,
        coalesce(row, batch_size, position, cached, request_round) AS value,
        count(*) AS n, sum(accepted) AS a, count(*) FILTER (WHERE drafts) AS drafting,
        count(*) FILTER (WHERE drafts AND accepted > 0) AS first
    FROM r
    GROUP BY GROUPING SETS (
        (host, pid, request_seq, row), (host, pid, request_seq, batch_size), (host, pid, request_seq, position),
        (host, pid, request_seq, cached), (host, pid, request_seq, request_round))
)
SELECT split, value::BIGINT AS value, count(*) AS requests, sum(n)::BIGINT AS rounds, 1 + sum(a) / sum(n) AS accept_length,
    sum(first) / nullif(sum(drafting), 0) AS first_rate,
    CASE WHEN count(*) > 1 THEN sqrt(greatest(0, count(*) / (count(*) - 1)
        * (sum(a * a) - 2 * (sum(a) / sum(n)) * sum(n * a) + (sum(a) / sum(n)) ** 2 * sum(n * n)))) / sum(n) END AS stderr
FROM parts
WHERE value IS NOT NULL
GROUP BY split, value
ORDER BY split, value
