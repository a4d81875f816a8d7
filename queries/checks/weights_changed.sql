-- id: weights.changed
-- title: Acceptance survives updates of the weights
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: weights.changed
-- about: Rounds before and after the update that parts them best. What was updated, and whether draft and target both
--        were, is told with it.
-- param update_share: float = 0.85, share of the other rounds' rate below which an update has cost something
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: miles#1926, sglang#31674, sglang#27718
WITH u AS (
    SELECT count(*) AS updates, array_to_string(list_sort(list(DISTINCT detail ->> '$.side')), ' and ') AS sides
    FROM events WHERE kind = 'weights_changed'
),
f AS (
    FROM split_findings(['late'], $update_share, FALSE, $live_rate, $split_rounds, $split_prompts)
    WHERE EXISTS (FROM late_from WHERE updated)
)
SELECT
    CASE WHEN updates = 0 THEN 'not_applicable' WHEN state = 'fails' THEN 'alarm' WHEN state = 'few' THEN 'unknown'
         ELSE 'ok' END AS status,
    'updates of weights' AS subject,
    CASE WHEN updates = 0 THEN 'no update of weights was recorded'
         WHEN state IS NULL THEN concat(updates, ' updates of the ', sides, ', and acceptance fell after none of them')
         WHEN state = 'few' THEN concat(updates, ' updates of the ', sides, '; too few rounds before or after: ', text,
                                        '; send more requests')
         ELSE concat(updates, ' updates of the ', sides, '; ', replace(text, 'from a moment on', 'after one of them'))
         END AS reason,
    json_object('updates', updates, 'sides', sides, 'rounds', evidence::JSON) AS evidence
FROM u LEFT JOIN f ON TRUE
