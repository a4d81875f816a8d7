-- title: Hook targets, the newest row of each in each process
-- needs: all_ranks.hooks
SELECT *
FROM all_ranks.hooks
QUALIFY row_number() OVER (PARTITION BY host, pid, target ORDER BY time_unix_nano DESC NULLS LAST) = 1
