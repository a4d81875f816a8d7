-- title: Acceptance at each depth from the totals, exact whatever the sampling
-- needs: totals, wilson
WITH depths AS (
    SELECT unnest(range(1, len(reached_by_depth) + 1)) AS depth,
           unnest(reached_by_depth) AS reached, unnest(accepted_by_depth) AS accepted
    FROM totals
)
SELECT
    depth::INT AS depth,
    sum(reached)::BIGINT AS reached,
    sum(accepted)::BIGINT AS accepted,
    sum(accepted) / nullif(sum(reached), 0) AS rate,
    wilson(sum(accepted)::BIGINT, sum(reached)::BIGINT, -1) AS rate_ci_low,
    wilson(sum(accepted)::BIGINT, sum(reached)::BIGINT, 1) AS rate_ci_high,
    sum(accepted) / nullif((SELECT sum(rounds) FROM totals), 0) AS unconditional_rate
FROM depths
GROUP BY depth
ORDER BY depth
