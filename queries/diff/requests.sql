-- title: Every request with what its rounds are told apart by
-- needs: all_requests, all_rounds
-- about: Kept as the temporary table `diff_requests`.
-- column prompt: hash of the prompt; where it is not known, `#` and the request
-- column cluster: number of the prompt, from 0: requests of one prompt are alike
-- column started: place in the order of their start
WITH known AS (
    SELECT host, pid, request_seq, request_id, coalesce(request_kind, 'user') AS kind, prompt_hash, prompt_tokens,
           has_image, has_grammar, temperature > 0 AS sampled, coalesce(start_time_unix_nano, time_unix_nano) AS start
    FROM all_requests
),
whole AS (
    FROM known
    UNION ALL BY NAME
    SELECT DISTINCT host, pid, request_seq, 'user' AS kind
    FROM all_rounds r ANTI JOIN known k USING (host, pid, request_seq)
),
named AS (SELECT *, coalesce(prompt_hash, concat('#', host, '/', pid, '/', request_seq)) AS prompt FROM whole)
SELECT *, dense_rank() OVER (ORDER BY prompt) - 1 AS cluster,
       row_number() OVER (ORDER BY start NULLS LAST, host, pid, request_seq) AS started
FROM named
