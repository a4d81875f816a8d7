-- title: Reached and accepted positions at depth 1 and 2, one row
-- needs: position_stats, wilson
-- column low_1: lower end of the interval of the rate at depth 1
-- column high_2: upper end of the interval of the rate at depth 2
SELECT *, wilson(a1, n1, -1) AS low_1, wilson(a2, n2, 1) AS high_2
FROM (
    SELECT (sum(positions) FILTER (WHERE depth = 1))::BIGINT AS n1,
           coalesce(sum(positions) FILTER (WHERE depth = 1 AND accepted), 0)::BIGINT AS a1,
           coalesce(sum(positions) FILTER (WHERE depth = 2), 0)::BIGINT AS n2,
           coalesce(sum(positions) FILTER (WHERE depth = 2 AND accepted), 0)::BIGINT AS a2
    FROM position_stats
)
