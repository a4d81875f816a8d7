-- title: What happened, the first of each kind in full
-- param each: int = 25, how many of a kind
-- column times: how many of the kind there are in all
SELECT time_unix_nano AS time, kind, detail, host, pid, tp_rank, count(*) OVER (PARTITION BY kind) AS times
FROM events
QUALIFY row_number() OVER (PARTITION BY kind ORDER BY time_unix_nano) <= $each
ORDER BY time_unix_nano
