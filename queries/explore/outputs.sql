-- title: The output token ids of each request, rebuilt from rounds and verdicts
-- needs: rounds, verifies, requests
SELECT request_id, request_seq, first_index, tokens, output_tokens, complete, output_ids
FROM outputs
