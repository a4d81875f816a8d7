-- id: weights.decoded
-- title: Loaded parameters hold the values of their tensors
-- severity: critical
-- certainty: sure
-- requires: params, checkpoint_keys
-- causes: weights.quantization
-- about: A parameter that one tensor filled has its root mean square. A quantised tensor is the exception: decoded it
--        differs from the file's integers, and where it does not, its scales were not applied.
-- param same_tensor_difference: float = 0.05, relative difference below which tensors are equal up to rounding
-- references: sglang#35797
WITH w AS (
    SELECT v.*, CASE WHEN quantised THEN s.weight IS NOT NULL AND dtype NOT IN ('int8', 'uint8', 'int4')
                                 AND NOT starts_with(dtype, 'float8') AND difference <= $same_tensor_difference
             ELSE difference > $same_tensor_difference END AS wrong
    FROM loaded_values v LEFT JOIN (SELECT DISTINCT weight FROM scale_keys WHERE NOT coalesce(neutral, FALSE)) s ON s.weight = v.key
)
SELECT 'alarm' AS status, name AS subject,
    CASE WHEN quantised THEN concat(name, ' (', dtype, ') holds the quantised values of ', key, ' (', file_dtype,
                                    ') as they are: their scale was not applied')
         ELSE concat(name, ' (', dtype, ') has a root mean square of ', round(rms, 5), ', ', key, ' (', file_dtype,
                     ') of the checkpoint one of ', round(file_rms, 5)) END AS reason,
    json_object('name', name, 'key', key, 'dtype', dtype, 'file_dtype', file_dtype, 'rms', rms, 'file_rms', file_rms)
        AS evidence
FROM w WHERE wrong
UNION ALL
SELECT CASE WHEN count(*) = 0 THEN 'unknown' ELSE 'ok' END, 'parameters',
    CASE WHEN count(*) = 0 THEN 'no parameter was seen beside the one tensor that filled it: trace the start of the server'
         ELSE concat(count(*), ' parameters have the root mean square of their tensors') END,
    json_object('parameters', count(*))
FROM w HAVING count(*) FILTER (WHERE wrong) = 0
