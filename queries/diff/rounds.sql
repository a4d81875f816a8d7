-- title: Counted rounds of each request by what a batch varies; one scan
-- needs: all_rounds, rounds
-- about: Reads the temporary table `diff_requests`. Warm-up and health requests included. Batch sizes and positions
--        stand in steps of powers of 2 and 4, rows from $rows on together.
-- param rows: int = 8, rows of the batch that are told apart
-- column third: third of the time between the first and the last round of user requests, 0 to 2; NULL outside
-- column batch_step: 0 for batches of 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8 ...
-- column position_step: 0 below 128, 1 below 512, 2 below 2048 ...
WITH ends AS (
    SELECT min(time_unix_nano) AS first, greatest(max(time_unix_nano) - min(time_unix_nano), 1) AS span
    FROM rounds WHERE drafted > 0
),
sums AS (
    SELECT
        host, pid, request_seq,
        cached_tokens > 0 AS cached,
        CASE WHEN batch_size > 1 THEN least(row, $rows) END AS row,
        CASE WHEN batch_size > 1 THEN row = batch_size - 1 END AS last_row,
        ceil(log2(greatest(batch_size, 1)))::INT AS batch_step,
        greatest(floor((log2(greatest(position, 1)) - 7) / 2) + 1, 0)::INT AS position_step,
        CASE WHEN time_unix_nano >= first THEN least((time_unix_nano - first) * 3 // span, 2)::INT END AS third,
        request_round = 1 AS first_round,
        graph,
        count(*)::BIGINT AS rounds,
        sum(accepted)::BIGINT AS accepted
    FROM all_rounds, ends
    WHERE counted IS NOT FALSE AND drafted > 0 AND accepted IS NOT NULL
    GROUP BY ALL
)
SELECT q.cluster, q.kind, q.has_image AS image, q.has_grammar AS grammar, q.sampled,
       s.* EXCLUDE (host, pid, request_seq)
FROM sums s JOIN diff_requests q USING (host, pid, request_seq)
