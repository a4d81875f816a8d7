-- id: weights.scales
-- title: The scales of quantised tensors are used
-- severity: critical
-- certainty: sure
-- requires: checkpoint_keys
-- causes: weights.quantization
-- about: Scales of one and zero points of zero are not missed.
-- references: sglang#35797
WITH unused AS (SELECT * FROM scale_keys WHERE fate = 'dropped' AND NOT coalesce(neutral, FALSE))
SELECT 'alarm' AS status, key AS subject,
    concat(key, ' landed nowhere: ', coalesce(weight || ' (' || weight_dtype || ')', 'its tensor'),
           ' is served without it') AS reason,
    json_object('key', key, 'weight', weight, 'weight_dtype', weight_dtype) AS evidence
FROM unused
UNION ALL
SELECT CASE WHEN count(*) = 0 THEN 'not_applicable' WHEN count(fate) = 0 THEN 'unknown' ELSE 'ok' END, 'scales',
    CASE WHEN count(*) = 0 THEN 'the checkpoint has no scales'
         WHEN count(fate) = 0 THEN 'it was not seen where the scales went: trace the start of the server'
         WHEN bool_or(fate = 'dropped') THEN concat(count(*) FILTER (WHERE fate = 'dropped'), ' of ', count(*),
             ' scales landed nowhere; all of these are one (zero points: zero)')
         ELSE concat('all ', count(*), ' scales of the checkpoint were used') END,
    json_object('scales', count(*))
FROM scale_keys HAVING NOT EXISTS (FROM unused)
