-- title: Reached positions of each request by depth, of trees: siblings are one position
-- needs: all_verifies, all_rounds
-- about: Reads the temporary table `diff_requests`. Leaves out the few rounds that do not count, which is faster than
--        to look up all that do, as the view `verifies` does.
WITH positions AS (
    SELECT host, pid, request_seq, depth, coalesce(bool_or(accepted), FALSE) AS accepted,
           any_value(target_token_in_draft_vocab) AS known, any_value(draft_rank_of_target_token) AS rank
    FROM all_verifies
    ANTI JOIN (FROM all_rounds WHERE counted IS FALSE) USING (host, pid, round, request_seq)
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
WHERE q.kind = 'user'
