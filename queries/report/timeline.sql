-- title: Accept length over time, in steps of equal length; steps without a round have no row
-- about: Intervals are those of a mean over requests, each with all of its rounds in the step (a ratio estimate): rounds
--        of one request resemble each other.
-- param first: int = 0, start of step 0, ns since 1970 UTC
-- param width: int = 1000000000, length of a step, ns
-- column step: number of the step, from 0
-- column stderr: standard error of the accept length; NULL where only one request was served
WITH parts AS (
    SELECT (time_unix_nano - $first) // $width AS step, host, pid, request_seq, count(*) AS n, sum(accepted) AS a
    FROM rounds
    WHERE accepted IS NOT NULL AND time_unix_nano IS NOT NULL
    GROUP BY ALL
)
SELECT step::INT AS step, count(*) AS requests, sum(n)::BIGINT AS rounds, 1 + sum(a) / sum(n) AS accept_length,
    CASE WHEN count(*) > 1 THEN sqrt(greatest(0, count(*) / (count(*) - 1)
        * (sum(a * a) - 2 * (sum(a) / sum(n)) * sum(n * a) + (sum(a) / sum(n)) ** 2 * sum(n * n)))) / sum(n) END AS stderr
FROM parts
GROUP BY step
ORDER BY step
