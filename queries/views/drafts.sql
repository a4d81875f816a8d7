-- title: Every drafted token in a counted round of a user request, rank 0
-- needs: all_drafts, uncounted_rounds
SELECT t.*
FROM all_drafts t
ANTI JOIN uncounted_rounds r
    ON r.host = t.host AND r.pid = t.pid AND r.round = t.round AND r.request_seq = t.request_seq
