-- title: How many rows the trace will have
SELECT (SELECT count(*) FROM all_ranks.spans WHERE name <> 'eagle.request') + (SELECT count(*) FROM all_requests)
     + (SELECT count(*) FROM all_rounds WHERE counted IS NOT FALSE)
     + (SELECT count(DISTINCT (host, pid, round)) FROM rounds)
