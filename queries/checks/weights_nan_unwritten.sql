-- id: weights.nan_unwritten
-- title: No unwritten parameter holds NaN
-- severity: critical
-- certainty: symptom
-- requires: params
-- causes: weights.missing, weights.not_loaded
WITH bad AS (SELECT * FROM draft_params WHERE nan_count > 0 AND missing > 0)
SELECT
    'alarm' AS status, name AS subject,
    concat(name, ' holds ', nan_count, ' NaN or infinite values that no tensor of the checkpoint wrote') AS reason,
    json_object('name', name, 'nan_count', nan_count, 'elements', elements) AS evidence
FROM bad
UNION ALL
SELECT 'ok', 'parameters', 'no unwritten parameter holds NaN', json_object('parameters', count(*))
FROM draft_params HAVING NOT EXISTS (FROM bad)
