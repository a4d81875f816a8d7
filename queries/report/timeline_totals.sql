-- title: Accept length over time from the totals, for runs without rounds, or with a sample of them
-- param steps: int = 120, how many steps at most
-- column time: start of the step, ns since 1970 UTC
-- column width: length of a step, ns
WITH t AS (SELECT time_unix_nano AS ns, rounds, accepted FROM totals WHERE rounds > 0 AND time_unix_nano IS NOT NULL),
bounds AS (SELECT min(ns) AS begin, greatest(1000000000, (max(ns) - min(ns)) // $steps + 1) AS width FROM t)
SELECT (any_value(begin) + (ns - begin) // width * any_value(width))::BIGINT AS time, any_value(width)::BIGINT AS width,
    sum(rounds)::BIGINT AS rounds, 1 + sum(accepted) / sum(rounds) AS accept_length
FROM t, bounds
GROUP BY (ns - begin) // width
ORDER BY time
