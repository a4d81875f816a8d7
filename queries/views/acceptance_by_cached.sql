-- title: Acceptance with and without a prefix-cache hit
-- needs: rounds, round_verdicts, round_depths
-- column cached: whether tokens of the prompt came from the prefix cache; NULL when not recorded
-- column first_reached: rounds with a node at depth 1
-- column first_rate: share of those in which it was accepted
SELECT
    r.cached_tokens > 0 AS cached,
    count(*) AS rounds,
    sum(v.accepted)::BIGINT AS accepted,
    1 + sum(v.accepted) / count(*) AS accept_length,
    stddev_samp(v.accepted) / sqrt(count(*)) AS accept_length_stderr,
    count(*) FILTER (WHERE d.reached) AS first_reached,
    count(*) FILTER (WHERE d.accepted) / nullif(count(*) FILTER (WHERE d.reached), 0) AS first_rate
FROM rounds r
JOIN round_verdicts v USING (host, pid, round, request_seq)
LEFT JOIN round_depths d ON d.host = r.host AND d.pid = r.pid AND d.round = r.round
    AND d.request_seq = r.request_seq AND d.depth = 1
GROUP BY 1
ORDER BY 1
