-- id: weights.missing
-- title: Every parameter of the draft has a tensor in the checkpoint, or the target's storage
-- severity: critical
-- certainty: sure
-- requires: params, checkpoint_keys
-- causes: weights.missing
-- about: Parameters that a dropped tensor fits are left to weights.not_loaded; norms and biases that still hold
--        the value they start with to weights.neutral.
-- references: sglang#27829
WITH missing AS (
    SELECT * FROM draft_params
    WHERE missing > 0 AND NOT harmless_value AND NOT initial_bias
        AND name NOT IN (SELECT unnest(fits_any) FROM dropped_keys WHERE fits IS NOT NULL)
)
SELECT
    'alarm' AS status,
    name AS subject,
    concat(name, ' ', shape::VARCHAR,
        CASE WHEN elements_loaded > 0
             THEN concat(': only ', elements_loaded, ' of ', elements, ' elements were written (by ',
                         array_to_string(checkpoint_keys, ', '), ')')
             ELSE ': no tensor of the checkpoint wrote it and it is not shared with the target' END,
        CASE WHEN nan_count > 0 THEN concat('; it holds ', nan_count, ' NaN or infinite values') END) AS reason,
    json_object('name', name, 'shape', shape, 'elements', elements, 'elements_loaded', elements_loaded,
                'checkpoint_keys', checkpoint_keys, 'rms', CASE WHEN isfinite(rms) THEN rms END,
                'nan_count', nan_count) AS evidence
FROM missing
UNION ALL
SELECT
    CASE WHEN count(*) FILTER (WHERE elements_loaded IS NOT NULL) = 0 THEN 'unknown' ELSE 'ok' END,
    'parameters',
    CASE WHEN count(*) FILTER (WHERE elements_loaded IS NOT NULL) = 0
         THEN 'it was not seen which parameters were written: trace the start of the server'
         ELSE concat('all ', count(*), ' parameters of the draft were written, are shared with the target,',
                     ' or are judged by another check') END,
    json_object('parameters', count(*))
FROM draft_params
HAVING NOT EXISTS (FROM missing)
