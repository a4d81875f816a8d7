-- title: Everything that happened, in order
-- needs: events
SELECT make_timestamp(time_unix_nano // 1000) AS time, host, pid, tp_rank, kind, detail
FROM events
ORDER BY time_unix_nano
