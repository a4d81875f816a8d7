-- title: Events by kind and step of the timeline
-- param first: int = 0, start of step 0, ns since 1970 UTC
-- param width: int = 1000000000, length of a step, ns
-- column time: the first of them
SELECT (time_unix_nano - $first) // $width AS step, kind, count(*) AS times, min(time_unix_nano) AS time
FROM events
WHERE time_unix_nano >= $first - $width
GROUP BY ALL
ORDER BY time, kind
