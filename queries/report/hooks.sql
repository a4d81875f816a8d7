-- title: What was hooked, by target and status; processes are counted
-- param limit: int = 200, how many
SELECT target, status, any_value(required) AS required, count(*) AS processes, sum(calls)::BIGINT AS calls,
       sum(errors)::BIGINT AS errors, any_value(detail) AS detail
FROM hooks
GROUP BY target, status
ORDER BY status = 'installed', NOT coalesce(any_value(required), FALSE), target
LIMIT $limit
