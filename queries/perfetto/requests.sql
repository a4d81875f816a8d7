-- title: Requests, by start; one that still runs ends with its last round
-- needs: round_times, all_requests
WITH bounds AS (
    SELECT host, pid, request_seq, min(begin) AS begin, max(finish) AS finish FROM round_times GROUP BY ALL
)
SELECT q.host, q.pid, q.request_seq, q.request_id, coalesce(q.request_kind, 'user') AS kind, q.prompt_tokens,
       q.cached_tokens, q.output_tokens, q.temperature, q.finish_reason,
       least(coalesce(q.start_time_unix_nano, b.begin), coalesce(b.begin, q.start_time_unix_nano)) AS begin,
       greatest(coalesce(q.end_time_unix_nano, b.finish, q.start_time_unix_nano),
                coalesce(b.finish, q.end_time_unix_nano, q.start_time_unix_nano)) AS finish
FROM all_requests q LEFT JOIN bounds b USING (host, pid, request_seq)
WHERE coalesce(q.start_time_unix_nano, b.begin) IS NOT NULL
ORDER BY begin, finish DESC
