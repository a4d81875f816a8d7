-- title: Acceptance of each user request
-- needs: round_verdicts, rounds, requests
SELECT
    r.host, r.pid, r.request_seq,
    any_value(q.request_id) AS request_id,
    any_value(q.prompt_tokens) AS prompt_tokens,
    any_value(q.cached_tokens) AS cached_tokens,
    any_value(q.output_tokens) AS output_tokens,
    any_value(q.finish_reason) AS finish_reason,
    count(*) AS rounds,
    sum(v.accepted)::BIGINT AS accepted,
    1 + sum(v.accepted) / count(*) AS accept_length,
    any_value(q.engine_rounds) AS engine_rounds,
    any_value(q.engine_accepted) AS engine_accepted
FROM rounds r
JOIN round_verdicts v USING (host, pid, round, request_seq)
LEFT JOIN requests q ON q.host = r.host AND q.pid = r.pid AND q.request_seq = r.request_seq
GROUP BY r.host, r.pid, r.request_seq
ORDER BY r.host, r.pid, r.request_seq
