-- title: Tokens that the target wanted and the draft vocabulary does not have
-- needs: verifies
-- about: The share is of all reached positions; each costs its round the rest of its drafts.
-- param limit: int = 20, how many tokens
WITH wanted AS (
    SELECT any_value(expected_token) AS token, any_value(target_token_in_draft_vocab) AS known
    FROM verifies
    WHERE depth > 0 AND reached
    GROUP BY host, pid, round, request_seq, parent_node
)
SELECT token, count(*) AS times, count(*) / (SELECT count(*) FROM wanted WHERE known IS NOT NULL) AS share
FROM wanted
WHERE known = FALSE
GROUP BY token
ORDER BY times DESC, token
LIMIT $limit
