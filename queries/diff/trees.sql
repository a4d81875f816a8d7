-- title: Reached positions of each request by depth, of trees: siblings are one position
-- needs: verifies
-- about: Reads the temporary table `diff_requests`.
WITH positions AS (
    SELECT host, pid, request_seq, depth, coalesce(bool_or(accepted), FALSE) AS accepted,
           any_value(target_token_in_draft_vocab) AS known, any_value(draft_rank_of_target_token) AS rank
    FROM verifies
    WHERE depth > 0 AND reached
    GROUP BY host, pid, round, request_seq, parent_node, depth
),
sums AS (
    SELECT
        host, pid, request_seq, depth,
        TRUE AS branch,
        count(*)::BIGINT AS reached,
        count(*) FILTER (WHERE accepted)::BIGINT AS accepted,
        count(known)::BIGINT AS vocab_known,
        count(*) FILTER (WHERE NOT known)::BIGINT AS out_of_vocab,
        count(*) FILTER (WHERE rank >= 1)::BIGINT AS rank_known,
        count(*) FILTER (WHERE rank = 1)::BIGINT AS rank_1,
        count(*) FILTER (WHERE rank BETWEEN 2 AND 10)::BIGINT AS rank_10,
        count(*) FILTER (WHERE rank BETWEEN 11 AND 100)::BIGINT AS rank_100,
        count(*) FILTER (WHERE rank > 100)::BIGINT AS rank_beyond
    FROM positions
    GROUP BY ALL
)
SELECT q.cluster, s.* EXCLUDE (host, pid, request_seq)
FROM sums s JOIN diff_requests q USING (host, pid, request_seq)
