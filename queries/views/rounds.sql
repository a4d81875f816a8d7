-- title: Counted rounds of user requests, rank 0
-- needs: all_rounds, all_requests
-- about: One row per request and verify launch.
SELECT r.*
FROM all_rounds r
LEFT JOIN all_requests q ON q.host = r.host AND q.pid = r.pid AND q.request_seq = r.request_seq
WHERE coalesce(q.request_kind, 'user') = 'user' AND r.counted IS NOT FALSE
