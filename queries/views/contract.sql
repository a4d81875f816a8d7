-- title: Load-time facts, the newest row of each key, rank 0
-- needs: all_ranks.contract
-- about: One row per key. With several processes of rank 0 in one run the newest row of all;
--        all_ranks.contract has every rank's.
SELECT *
FROM all_ranks.contract
WHERE coalesce(tp_rank, 0) = 0
QUALIFY row_number() OVER (PARTITION BY key ORDER BY time_unix_nano DESC NULLS LAST) = 1
