-- id: ranks.acceptance
-- title: Data-parallel ranks accept about as much as each other
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: batch.row
-- about: Ranks serve different requests, so that only a rank far below the others is one that fails. Counts rounds in
--        which the first draft was accepted.
-- param rank_rate_share: float = 0.33, share of the other ranks' rate below which a rank fails
-- param min_rounds: int = 30, rounds of a rank below which nothing is said
-- references: sglang#16310
WITH r AS (
    SELECT dp_rank AS dp, count(*) AS n, count(*) FILTER (accepted > 0) AS k
    FROM rounds WHERE dp_rank IS NOT NULL AND drafted > 0 AND accepted IS NOT NULL GROUP BY ALL
),
f AS (
    SELECT dp, n, k, sum(n) OVER () - n AS others_n, sum(k) OVER () - k AS others_k FROM r
),
g AS (
    SELECT *, n < $min_rounds OR others_n < $min_rounds AS few,
           wilson(k, n, 1) AS high, wilson(others_k::BIGINT, others_n::BIGINT, -1) AS others_low
    FROM f WHERE others_n > 0
)
SELECT
    CASE WHEN few THEN 'unknown' WHEN high < $rank_rate_share * others_low THEN 'alarm' ELSE 'ok' END AS status, concat('dp rank ', dp) AS subject,
    CASE WHEN few THEN concat('dp rank ', dp, ' ran ', n, ' rounds, the others ', others_n, '; ', $min_rounds,
                              ' of each would do')
         ELSE concat('the first draft was accepted in ', k, ' of ', n, ' rounds of dp rank ', dp, ', in ', others_k,
                     ' of ', others_n, ' of the others') END AS reason,
    json_object('dp_rank', dp, 'rounds', n, 'first_accepted', k, 'others_rounds', others_n,
                'others_first_accepted', others_k, 'high', high, 'others_low', others_low) AS evidence
FROM g
UNION ALL
SELECT 'not_applicable', 'ranks', 'one data-parallel rank served requests',
    json_object('ranks', (SELECT count(*) FROM r))
WHERE NOT EXISTS (FROM f)
