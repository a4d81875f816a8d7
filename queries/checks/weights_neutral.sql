-- id: weights.neutral
-- title: No norm or bias was left at the value it starts with
-- severity: warning
-- certainty: possible
-- requires: params, checkpoint_keys
-- causes: weights.missing
-- about: A norm that stays at ones only takes a learned scale away, which most often costs nothing visible. A draft
--        may have been trained without a bias that its class has (EAGLE configurations with "bias": false).
WITH neutral AS (SELECT * FROM draft_params WHERE missing > 0 AND (harmless_value OR initial_bias))
SELECT
    'alarm' AS status,
    p.name AS subject,
    concat(p.name, ' was never written and holds ',
           CASE WHEN NOT p.harmless_value THEN 'the small random values that a bias starts with'
                ELSE concat(p.constant::BIGINT, ' everywhere, the neutral value of a ',
                            CASE WHEN p.constant = 0 THEN 'bias' ELSE 'norm' END) END,
           CASE WHEN k.key IS NOT NULL THEN concat('; ', k.key, ' of the checkpoint landed nowhere') END) AS reason,
    json_object('name', p.name, 'value', p.constant, 'dropped_key', k.key) AS evidence
FROM neutral p LEFT JOIN dropped_keys k ON k.fits = p.name
UNION ALL
SELECT 'ok', 'parameters', 'every norm and bias was written', json_object('parameters', count(*))
FROM draft_params HAVING NOT EXISTS (FROM neutral)
