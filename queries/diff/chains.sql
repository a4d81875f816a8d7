-- title: Reached positions of each request by depth, of chains: each reached node is a position; one scan
-- needs: all_verifies, all_rounds
-- about: Reads the temporary table `diff_requests`. Leaves out the few rounds that do not count, which is faster than
--        to look up all that do, as the view `verifies` does.
-- column branch: a node whose index is not its depth: then the run has trees, and `trees` counts it
WITH sums AS (
    SELECT
        host, pid, request_seq, depth,
        bool_or(node <> depth) AS branch,
        count(*) FILTER (WHERE reached)::BIGINT AS reached,
        count(*) FILTER (WHERE reached AND accepted)::BIGINT AS accepted,
        count(*) FILTER (WHERE reached AND target_token_in_draft_vocab IS NOT NULL)::BIGINT AS vocab_known,
        count(*) FILTER (WHERE reached AND NOT target_token_in_draft_vocab)::BIGINT AS out_of_vocab,
        count(*) FILTER (WHERE reached AND draft_rank_of_target_token >= 1)::BIGINT AS rank_known,
        count(*) FILTER (WHERE reached AND draft_rank_of_target_token = 1)::BIGINT AS rank_1,
        count(*) FILTER (WHERE reached AND draft_rank_of_target_token BETWEEN 2 AND 10)::BIGINT AS rank_10,
        count(*) FILTER (WHERE reached AND draft_rank_of_target_token BETWEEN 11 AND 100)::BIGINT AS rank_100,
        count(*) FILTER (WHERE reached AND draft_rank_of_target_token > 100)::BIGINT AS rank_beyond
    FROM all_verifies
    ANTI JOIN (FROM all_rounds WHERE counted IS FALSE) USING (host, pid, round, request_seq)
    WHERE depth > 0
    GROUP BY ALL
)
SELECT q.cluster, s.* EXCLUDE (host, pid, request_seq)
FROM sums s JOIN diff_requests q USING (host, pid, request_seq)
WHERE q.kind = 'user'
