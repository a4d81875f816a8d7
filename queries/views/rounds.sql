-- title: Counted rounds of user requests, rank 0
-- needs: all_rounds, all_requests
-- about: One row per request and verify launch.
SELECT r.*
FROM all_rounds r
ANTI JOIN (FROM all_requests WHERE request_kind <> 'user') q
    ON q.host = r.host AND q.pid = r.pid AND q.request_seq = r.request_seq
WHERE r.counted IS NOT FALSE
