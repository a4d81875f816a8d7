-- title: Parameters, the newest row of each, rank 0
-- needs: all_ranks.params
-- about: With several processes of rank 0 in one run (data parallelism, a restart) the newest row of all.
SELECT *
FROM all_ranks.params
WHERE coalesce(tp_rank, 0) = 0
QUALIFY row_number() OVER (PARTITION BY side, name ORDER BY time_unix_nano DESC NULLS LAST, epoch DESC NULLS LAST) = 1
ORDER BY side, name
