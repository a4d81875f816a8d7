-- title: Accept length over time
-- needs: rounds, verifies
-- param seconds: float = 1, length of one step
SELECT
    make_timestamp((floor(r.time_unix_nano / ($seconds * 1e9)) * $seconds * 1e6)::BIGINT) AS time,
    count(*) AS rounds,
    count(DISTINCT (r.host, r.pid, r.request_seq)) AS requests,
    1 + sum(v.accepted) / count(*) AS accept_length,
    sum(r.committed) / $seconds AS tokens_per_second
FROM rounds r
JOIN round_verdicts v USING (host, pid, round, request_seq)
WHERE r.time_unix_nano IS NOT NULL
GROUP BY 1
ORDER BY 1
