-- title: The view `position_stats` for chains, from `node_counts`: each reached node is a position of its own
SELECT depth, accepted, in_draft_vocab, rank_class, rejected_equal, sum(nodes)::BIGINT AS positions
FROM node_counts
WHERE depth > 0 AND reached
GROUP BY ALL
