-- title: Nodes of verify trees, counted by everything that the diagnosis asks of them; one scan
-- about: In chains (no `branch`) a reached node is a reached position.
SELECT
    depth,
    coalesce(node <> depth, FALSE) AS branch,
    coalesce(reached, FALSE) AS reached,
    coalesce(accepted, FALSE) AS accepted,
    target_token_in_draft_vocab AS in_draft_vocab,
    CASE WHEN draft_rank_of_target_token <= 1 THEN 1 WHEN draft_rank_of_target_token <= 10 THEN 10
         WHEN draft_rank_of_target_token <= 100 THEN 100 WHEN draft_rank_of_target_token > 100 THEN 1000
    END AS rank_class,
    coalesce(draft_token = expected_token AND NOT accepted, FALSE) AS rejected_equal,
    CASE WHEN depth = 1 AND reached THEN draft_token END AS first_draft,
    count(*) AS nodes
FROM verifies
GROUP BY ALL
