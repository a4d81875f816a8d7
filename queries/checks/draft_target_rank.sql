-- id: draft.target_rank
-- title: The target's token is among the draft's ten best
-- severity: warning
-- certainty: symptom
-- requires: position_stats
-- causes: weights.not_loaded, weights.missing, aux.not_captured, lm_head.replaced, embed.mismatch
-- param far_rank_share: float = 0.5, share of first drafts with the target's token beyond rank 10 that is a symptom
-- param min_rounds: int = 30, positions below which nothing is said
WITH p AS (
    SELECT coalesce(sum(positions) FILTER (WHERE rank_class IS NOT NULL), 0) AS n,
           coalesce(sum(positions) FILTER (WHERE rank_class >= 100), 0) AS far,
           coalesce(sum(positions) FILTER (WHERE rank_class = 1), 0) AS first
    FROM position_stats WHERE depth = 1
)
SELECT
    CASE WHEN n < $min_rounds THEN 'unknown' WHEN far > $far_rank_share * n THEN 'alarm' ELSE 'ok' END AS status,
    'depth 1' AS subject,
    CASE WHEN n < $min_rounds
         THEN concat('the rank of the target''s token was seen at ', n, ' first drafts; ', $min_rounds,
                     ' would do (EAGLETRACE_LEVEL=tokens)')
         ELSE concat('the target''s token is the draft''s best in ', round(100 * first / n), ' % of first drafts,',
                     ' among its ten best in ', round(100 * (n - far) / n), ' %') END AS reason,
    json_object('positions', n, 'best', first, 'beyond_ten', far) AS evidence
FROM p
