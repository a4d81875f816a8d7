-- title: Sums of `node_counts` by depth
SELECT
    depth,
    sum(nodes)::BIGINT AS nodes,
    coalesce(sum(nodes) FILTER (WHERE accepted), 0)::BIGINT AS accepted,
    coalesce(sum(nodes) FILTER (WHERE reached), 0)::BIGINT AS reached,
    bool_or(branch) AS branch
FROM node_counts
GROUP BY depth
ORDER BY depth
