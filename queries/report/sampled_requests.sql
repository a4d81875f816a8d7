-- title: Requests to look at: those with the lowest accept length, the middle one and the highest
-- about: Of requests with at least `least` rounds, where there are any; `round_counts` has the rounds by request.
-- param least: int = 8, rounds
-- column why: lowest, middle or highest
WITH counted AS (FROM round_counts WHERE rounds > 0 AND accepted IS NOT NULL),
enough AS (FROM counted WHERE rounds >= least($least, (SELECT max(rounds) FROM counted))),
placed AS (
    SELECT *, 1 + accepted / rounds AS accept_length,
        row_number() OVER (ORDER BY accepted / rounds, rounds DESC, host, pid, request_seq) AS place,
        count(*) OVER () AS all_requests
    FROM enough
)
SELECT p.host, p.pid, p.request_seq, p.rounds, p.accept_length,
    CASE WHEN place <= 2 THEN 'lowest' WHEN place = all_requests THEN 'highest' ELSE 'middle' END AS why,
    q.request_id, q.prompt_tokens, q.cached_tokens, q.output_tokens, q.temperature, q.finish_reason
FROM placed p
LEFT JOIN requests q ON q.host = p.host AND q.pid = p.pid AND q.request_seq = p.request_seq
WHERE place <= 2 OR place = all_requests OR place = (all_requests + 1) // 2
ORDER BY place
