-- title: What was drafted and rejected most, and what the target wanted instead
-- needs: verifies
-- about: Only positions that were reached: what stands under a rejected token was never judged.
-- column best_rank: best rank of the target's token in the draft's distribution, from 1; NULL when not recorded
-- param limit: int = 20, how many pairs
SELECT
    draft_token,
    expected_token AS target_wanted,
    count(*) AS times,
    min(draft_rank_of_target_token) AS best_rank,
    median(draft_rank_of_target_token) AS median_rank,
    bool_or(target_token_in_draft_vocab) AS in_draft_vocab,
    min(depth) AS shallowest_depth
FROM verifies
WHERE depth > 0 AND reached AND NOT accepted
GROUP BY draft_token, expected_token
ORDER BY times DESC, draft_token, expected_token
LIMIT $limit
