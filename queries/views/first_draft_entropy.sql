-- title: Entropy of the draft's distribution where the first token is drafted; no row without first drafts
-- needs: drafts
-- column drafts: first drafts whose entropy was recorded
-- column entropy: mean entropy, in nats
SELECT count(draft_entropy) AS drafts, avg(draft_entropy) AS entropy
FROM drafts
WHERE depth = 1
GROUP BY depth
