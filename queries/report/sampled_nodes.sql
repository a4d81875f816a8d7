-- title: The verify trees of the first rounds of one request
-- param host: text = node, host of its process
-- param pid: int = 0, process
-- param seq: int = 0, request
-- param limit: int = 12, how many rounds
WITH r AS (
    FROM all_rounds
    WHERE host IS NOT DISTINCT FROM $host AND pid = $pid AND request_seq = $seq
        AND counted IS NOT FALSE AND accepted IS NOT NULL AND drafted > 0
    ORDER BY round LIMIT $limit
),
v AS (
    FROM all_verifies WHERE host IS NOT DISTINCT FROM $host AND pid = $pid AND request_seq = $seq
        AND round BETWEEN (SELECT min(round) FROM r) AND (SELECT max(round) FROM r)
),
d AS (
    FROM all_drafts WHERE host IS NOT DISTINCT FROM $host AND pid = $pid AND request_seq = $seq
        AND round BETWEEN (SELECT min(round) FROM r) AND (SELECT max(round) FROM r)
)
SELECT r.round, r.request_round, r.row, r.batch_size, r.position, r.accepted AS correct, r.committed, r.time_unix_nano,
    v.node, v.parent_node, v.depth, v.draft_token, v.expected_token, v.target_token, v.reached, v.accepted,
    v.target_token_in_draft_vocab AS known, v.draft_rank_of_target_token AS rank, v.grammar_masked AS masked,
    v.target_logprob_of_draft_token AS target_logprob, d.draft_logprob
FROM r
JOIN v ON v.round = r.round
LEFT JOIN d ON d.round = v.round AND d.node = v.node
ORDER BY r.round, v.node
