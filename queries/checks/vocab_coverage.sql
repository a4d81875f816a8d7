-- id: vocab.coverage
-- title: The target's tokens are in the draft vocabulary
-- severity: warning
-- certainty: sure
-- requires: position_stats
-- causes: vocab.coverage
-- param out_of_vocab_share: float = 0.25, share of target tokens outside the draft vocabulary from which it is a cause
-- param min_rounds: int = 30, positions below which nothing is said
WITH p AS (
    SELECT coalesce(sum(positions) FILTER (WHERE in_draft_vocab IS NOT NULL), 0) AS n,
           coalesce(sum(positions) FILTER (WHERE NOT in_draft_vocab), 0) AS out,
           coalesce(sum(positions) FILTER (WHERE NOT accepted AND in_draft_vocab IS NOT NULL), 0) AS rejected
    FROM position_stats WHERE depth = 1
),
g AS (SELECT *, wilson(out::BIGINT, n::BIGINT, -1) AS low FROM p)
SELECT
    CASE WHEN n < $min_rounds THEN 'unknown'
         WHEN low > $out_of_vocab_share THEN 'alarm' ELSE 'ok' END AS status,
    'draft vocabulary' AS subject,
    CASE WHEN n < $min_rounds
         THEN concat('whether the target''s token is in the draft vocabulary was seen at ', n, ' first drafts; ',
                     $min_rounds, ' would do (EAGLETRACE_LEVEL=tokens)')
         ELSE concat(round(100 * out / n, 1), ' % of the target''s tokens are not in the draft vocabulary (',
                     out, ' of ', n, ' first drafts, and of ', rejected, ' rejected ones)') END AS reason,
    json_object('positions', n, 'out_of_vocabulary', out, 'rejected', rejected, 'low', low) AS evidence
FROM g
