-- title: Reached positions by depth, verdict and where the target's token stood in the draft's distribution
-- needs: verifies
-- about: Counts a position once, however many branches a tree has there.
-- column rank_class: 1, 10 (2 to 10), 100 (11 to 100), 1000 (beyond); NULL if not recorded or not in the vocabulary
-- column rejected_equal: a node there had the target's own choice and was rejected all the same
WITH positions AS (
    SELECT
        depth,
        coalesce(bool_or(accepted), FALSE) AS accepted,
        any_value(target_token_in_draft_vocab) AS in_draft_vocab,
        any_value(draft_rank_of_target_token) AS rank,
        coalesce(bool_or(draft_token = expected_token AND NOT accepted), FALSE) AS rejected_equal
    FROM verifies
    WHERE depth > 0 AND reached
    GROUP BY host, pid, round, request_seq, parent_node, depth
)
SELECT
    depth, accepted, in_draft_vocab,
    CASE WHEN rank <= 1 THEN 1 WHEN rank <= 10 THEN 10 WHEN rank <= 100 THEN 100 WHEN rank > 100 THEN 1000 END
        AS rank_class,
    rejected_equal, count(*) AS positions
FROM positions
GROUP BY ALL
