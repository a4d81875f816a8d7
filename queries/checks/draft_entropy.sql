-- id: draft.entropy
-- title: The draft's distribution is not flat
-- severity: warning
-- certainty: symptom
-- requires: first_draft_entropy, contract:draft.draft_vocab_size
-- causes: weights.not_loaded, weights.missing
-- param flat_entropy_share: float = 0.9, mean entropy over ln(vocabulary) that counts as flat
-- param min_rounds: int = 30, drafts below which nothing is said
WITH d AS (SELECT drafts AS n, entropy FROM first_draft_entropy),
g AS (SELECT n, entropy, ln(fact('draft.draft_vocab_size')::DOUBLE) AS flat FROM d)
SELECT
    CASE WHEN n < $min_rounds OR flat IS NULL THEN 'unknown'
         WHEN entropy > $flat_entropy_share * flat OR isnan(entropy) THEN 'alarm' ELSE 'ok' END AS status,
    'depth 1' AS subject,
    CASE WHEN n < $min_rounds OR flat IS NULL
         THEN concat('the entropy of the draft was seen at ', n, ' first drafts; ', $min_rounds,
                     ' would do (EAGLETRACE_LEVEL=tokens)')
         ELSE concat('mean entropy of the first draft: ', round(entropy, 2), ' nats; a flat distribution has ',
                     round(flat, 2)) END AS reason,
    json_object('drafts', n, 'entropy', CASE WHEN isfinite(entropy) THEN entropy END, 'flat', flat) AS evidence
FROM g
