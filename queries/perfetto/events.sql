-- title: Events, by time
SELECT host, pid, time_unix_nano AS begin, kind, detail FROM all_ranks.events
WHERE time_unix_nano IS NOT NULL ORDER BY begin
