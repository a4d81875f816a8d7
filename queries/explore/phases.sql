-- title: Durations of the engine's phases, from the spans
-- needs: spans
SELECT
    name,
    count(*) AS spans,
    sum(duration_time_unix_nano) / 1e6 AS total_ms,
    quantile_cont(duration_time_unix_nano, 0.5) / 1e6 AS p50_ms,
    quantile_cont(duration_time_unix_nano, 0.99) / 1e6 AS p99_ms,
    max(duration_time_unix_nano) / 1e6 AS max_ms,
    count(*) FILTER (WHERE status_code = 'ERROR') AS errors
FROM spans
GROUP BY name
ORDER BY total_ms DESC
