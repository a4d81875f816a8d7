-- title: Entropy of the draft's distribution where the first token is drafted; no row without first drafts
-- needs: draft_counts
-- column drafts: first drafts whose entropy was recorded
-- column entropy: mean entropy, in nats
SELECT sum(known)::BIGINT AS drafts, sum(entropy) / nullif(sum(known), 0) AS entropy
FROM draft_counts
WHERE depth = 1
GROUP BY depth
