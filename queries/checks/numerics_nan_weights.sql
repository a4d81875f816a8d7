-- id: numerics.nan_weights
-- title: No loaded parameter holds NaN
-- severity: critical
-- certainty: sure
-- requires: params
-- causes: numerics.nan
WITH bad AS (SELECT * FROM draft_params WHERE nan_count > 0 AND missing = 0)
SELECT
    'alarm' AS status, name AS subject,
    concat(name, ' was fully written, and holds ', nan_count, ' NaN or infinite values') AS reason,
    json_object('name', name, 'nan_count', nan_count, 'elements', elements, 'checkpoint_keys', checkpoint_keys)
        AS evidence
FROM bad
UNION ALL
SELECT 'ok', 'parameters', 'no loaded parameter holds NaN', json_object('parameters', count(*))
FROM draft_params HAVING NOT EXISTS (FROM bad)
