-- title: Every node of a verify tree of rank 0
-- needs: all_ranks.verifies
SELECT * FROM all_ranks.verifies WHERE coalesce(tp_rank, 0) = 0
