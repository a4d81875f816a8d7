-- title: The output of each request as one list of token ids, rebuilt from rounds and verdicts
-- needs: output_tokens, requests
-- column output_ids: token ids in order
-- column first_index: output index of the first of them; 0 when the start is there
-- column complete: no gap, from index 0 to the output tokens that the engine reported; NULL while unknown
SELECT
    t.host, t.pid, t.request_seq,
    any_value(t.request_id) AS request_id,
    list(t.token ORDER BY t.position) AS output_ids,
    min(t.output_index) AS first_index,
    count(*) AS tokens,
    any_value(q.output_tokens) AS output_tokens,
    min(t.output_index) = 0 AND count(*) = max(t.output_index) + 1
        AND count(*) = any_value(q.output_tokens) AS complete
FROM output_tokens t
LEFT JOIN requests q ON q.host = t.host AND q.pid = t.pid AND q.request_seq = t.request_seq
GROUP BY t.host, t.pid, t.request_seq
ORDER BY t.host, t.pid, t.request_seq
