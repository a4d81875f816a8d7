-- title: Rounds of rank 0 that `rounds` leaves out: of warm-up and health requests, or of a request that had finished
-- needs: all_rounds, all_requests
-- about: They are few, so that to leave them out of a table is quicker than to look up which of its rows are counted.
SELECT r.host, r.pid, r.round, r.request_seq
FROM all_rounds r
LEFT JOIN all_requests q ON q.host = r.host AND q.pid = r.pid AND q.request_seq = r.request_seq
WHERE r.counted IS FALSE OR q.request_kind <> 'user'
