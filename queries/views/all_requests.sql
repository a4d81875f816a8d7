-- title: Every request, the newest row of each
-- needs: all_ranks.requests
-- about: Tensor-parallel rank 0, or a row whose rank was not known. Warm-up and health requests included.
SELECT *
FROM all_ranks.requests
WHERE coalesce(tp_rank, 0) = 0
QUALIFY row_number() OVER (PARTITION BY host, pid, request_seq ORDER BY time_unix_nano DESC NULLS LAST) = 1
