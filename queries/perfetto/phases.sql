-- title: Phases of launches, prefills and load-time steps, by start
SELECT host, pid, name, start_time_unix_nano AS begin, start_time_unix_nano + duration_time_unix_nano AS finish,
       attributes
FROM all_ranks.spans
WHERE name NOT IN ('eagle.request', 'eagle.launch') AND start_time_unix_nano IS NOT NULL
ORDER BY begin, finish DESC
