-- title: The view `first_draft_tokens`, from `node_counts`
SELECT first_draft AS draft_token, sum(nodes)::BIGINT AS drafts,
    coalesce(sum(nodes) FILTER (WHERE accepted), 0)::BIGINT AS accepted
FROM node_counts WHERE depth = 1 AND reached
GROUP BY first_draft
