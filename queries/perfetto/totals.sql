-- title: Totals, by time
-- needs: totals
SELECT host, pid, time_unix_nano AS begin, rounds, accepted FROM totals
WHERE time_unix_nano IS NOT NULL AND rounds > 0 ORDER BY begin
