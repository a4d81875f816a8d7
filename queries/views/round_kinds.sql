-- title: Rounds of each prompt by everything that a runtime varies, with how often the first draft was accepted
-- needs: rounds, requests, fact, late_from
-- about: A kind that was not recorded, or that does not apply, is NULL. Rounds without a verdict are left out.
--        An edge is where a prefix-cache hit ends or a chunk of the prompt begins, as far as chunks are as long as
--        the setting says; rounds near one are compared with rounds as near to the end of their prompt.
-- column prompt: requests with the same prompt have one: what they are answered is alike
-- column rounds: rounds
-- column accepted: rounds in which the first draft was accepted
WITH r AS (
    SELECT coalesce(q.prompt_hash, concat_ws('/', r.host, r.pid, r.request_seq)) AS prompt, r.cached_tokens, r.position, r.row, r.batch_size, r.request_round, r.graph,
           r.accepted, r.time_unix_nano, q.prompt_tokens, q.has_image, q.has_grammar, q.temperature,
           nullif(greatest(try_cast(fact('server.chunked_prefill_size') AS BIGINT), 0), 0) AS chunk
    FROM rounds r LEFT JOIN requests q ON q.host = r.host AND q.pid = r.pid AND q.request_seq = r.request_seq
    WHERE r.drafted > 0 AND r.accepted IS NOT NULL
),
e AS (
    SELECT *, CASE WHEN cached_tokens > 0 OR prompt_tokens - cached_tokens > chunk
        THEN cached_tokens + coalesce((prompt_tokens - cached_tokens - 1) // chunk * chunk, 0) END AS edge
    FROM r
)
SELECT
    prompt,
    cached_tokens > 0 AS cached,
    prompt_tokens - cached_tokens > chunk AS chunked,
    CASE WHEN position - prompt_tokens < 16 THEN coalesce(position - edge < 16, FALSE) END AS near_edge,
    CASE WHEN batch_size > 1 THEN row END AS row,
    CASE WHEN batch_size > 1 THEN row < batch_size - 1 END AS before_last_row,
    CASE WHEN NOT graph THEN batch_size END AS eager_batch_size,
    CASE WHEN graph THEN batch_size END AS graph_batch_size,
    request_round = 1 AS first_round,
    graph,
    has_image AS image,
    has_grammar AS grammar,
    temperature > 0 AS sampled,
    time_unix_nano >= (SELECT time_unix_nano FROM late_from) AS late,
    count(*) AS rounds,
    count(*) FILTER (WHERE accepted > 0) AS accepted
FROM e
GROUP BY ALL
