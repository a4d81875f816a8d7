-- title: The requests with the lowest accept length
-- needs: requests, verifies
-- param limit: int = 20, how many requests
-- param min_rounds: int = 8, requests with fewer rounds are left out
SELECT request_id, request_seq, rounds, accepted, accept_length, prompt_tokens, cached_tokens, output_tokens,
       finish_reason
FROM acceptance_by_request
WHERE rounds >= $min_rounds
ORDER BY accept_length, rounds DESC, request_seq
LIMIT $limit
