-- title: Rounds of requests, by start
-- needs: round_times
SELECT * FROM round_times ORDER BY begin, request_seq
