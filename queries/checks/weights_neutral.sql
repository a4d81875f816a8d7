-- id: weights.neutral
-- title: No norm or bias was left at its neutral value
-- severity: warning
-- certainty: possible
-- requires: params, checkpoint_keys
-- causes: weights.missing
-- about: A norm that stays at ones only takes a learned scale away, which most often costs nothing visible.
SELECT
    'alarm' AS status,
    p.name AS subject,
    concat(p.name, ' was never written and holds ', p.constant::BIGINT, ' everywhere, the neutral value of a ',
           CASE WHEN p.constant = 0 THEN 'bias' ELSE 'norm' END,
           CASE WHEN k.key IS NOT NULL THEN concat('; ', k.key, ' of the checkpoint landed nowhere') END) AS reason,
    json_object('name', p.name, 'value', p.constant, 'dropped_key', k.key) AS evidence
FROM draft_params p LEFT JOIN dropped_keys k ON k.fits = p.name
WHERE p.missing > 0 AND p.harmless_value
UNION ALL
SELECT 'ok', 'parameters', 'every norm and bias was written', json_object('parameters', count(*))
FROM draft_params
HAVING count(*) FILTER (WHERE missing > 0 AND harmless_value) = 0
