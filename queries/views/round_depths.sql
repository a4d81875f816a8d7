-- title: Whether each counted round reached and passed each depth
-- needs: verifies
-- column reached: a node at this depth stands under the accepted path, of depth - 1 correct drafts
-- column accepted: one of those nodes was accepted
SELECT
    host, pid, round, request_seq, depth,
    coalesce(bool_or(reached), FALSE) AS reached,
    coalesce(bool_or(accepted AND reached), FALSE) AS accepted
FROM verifies
WHERE depth > 0
GROUP BY ALL
