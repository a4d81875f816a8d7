-- title: Every round of rank 0
-- needs: all_ranks.rounds
-- about: Warm-up and health requests, and rounds that ran for a request that had finished, included.
SELECT * FROM all_ranks.rounds WHERE coalesce(tp_rank, 0) = 0
