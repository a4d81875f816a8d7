-- title: Counters of user requests' rounds, one row for each launch
-- needs: rounds
WITH launches AS (
    SELECT host, pid, round, min(time_unix_nano) AS begin, count(*) AS rounds, sum(accepted) AS accepted,
           sum(committed) AS committed
    FROM rounds WHERE time_unix_nano IS NOT NULL GROUP BY ALL
)
SELECT host, pid, begin, rounds, 1 + accepted / rounds AS accept_length,
       1 + sum(accepted) OVER last / sum(rounds) OVER last AS accept_length_1s,
       (sum(committed) OVER last)::DOUBLE AS tokens
FROM launches
WINDOW last AS (PARTITION BY host, pid ORDER BY begin RANGE BETWEEN 1000000000 PRECEDING AND CURRENT ROW)
ORDER BY begin
