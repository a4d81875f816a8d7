-- title: Totals of every interval, rank 0
-- needs: all_ranks.totals
SELECT * FROM all_ranks.totals WHERE coalesce(tp_rank, 0) = 0
