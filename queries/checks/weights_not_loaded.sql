-- id: weights.not_loaded
-- title: Every checkpoint tensor that a parameter waits for is loaded
-- severity: critical
-- certainty: sure
-- requires: params, checkpoint_keys
-- causes: weights.not_loaded
-- about: A dropped tensor whose shape fits a parameter that was never filled was meant for it.
-- references: sglang#35797, vllm#43459
WITH lost AS (SELECT * FROM dropped_keys WHERE fits IS NOT NULL AND NOT fits_harmless)
SELECT
    'alarm' AS status,
    key AS subject,
    concat(key, ' ', shape::VARCHAR, ' landed nowhere, while ', fits, ' was never filled') AS reason,
    json_object('key', key, 'shape', shape, 'fits', fits) AS evidence
FROM lost
UNION ALL
SELECT
    CASE WHEN count(*) FILTER (WHERE elements_loaded IS NULL) = count(*) THEN 'unknown' ELSE 'ok' END,
    'checkpoint',
    CASE WHEN count(*) FILTER (WHERE elements_loaded IS NULL) = count(*)
         THEN 'it was not seen which tensors wrote into which parameters: trace the start of the server'
         ELSE 'no dropped tensor fits a parameter that was left unfilled' END,
    json_object('parameters', count(*))
FROM draft_params
HAVING NOT EXISTS (FROM lost)
