-- title: Every drafted token of rank 0
-- needs: all_ranks.drafts
SELECT * FROM all_ranks.drafts WHERE coalesce(tp_rank, 0) = 0
