-- title: Where the target's token stood in the draft's distribution, by depth
-- needs: verifies
-- about: Counts reached positions once, however many branches a tree has there.
-- column rank: rank of the target's token among the draft's, from 1; NULL when not recorded or not in the vocabulary
-- column in_draft_vocab: whether the served draft vocabulary has the token; NULL when not recorded
WITH positions AS (
    SELECT
        depth,
        any_value(draft_rank_of_target_token) AS rank,
        any_value(target_token_in_draft_vocab) AS in_draft_vocab
    FROM verifies
    WHERE depth > 0 AND reached
    GROUP BY host, pid, round, request_seq, parent_node, depth
)
SELECT depth, rank, in_draft_vocab, count(*) AS positions
FROM positions
GROUP BY ALL
ORDER BY depth, rank NULLS LAST, in_draft_vocab NULLS LAST
