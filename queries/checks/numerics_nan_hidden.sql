-- id: numerics.nan_hidden
-- title: No hidden state holds NaN
-- severity: critical
-- certainty: sure
-- requires: hidden
-- causes: numerics.nan
-- not_for: standalone: a language model of its own is given no hidden state, and none is looked at
-- references: sglang#19897
SELECT
    CASE WHEN sum(nan_count) > 0 THEN 'alarm' ELSE 'ok' END AS status,
    stage AS subject,
    CASE WHEN sum(nan_count) > 0
         THEN concat('hidden states of stage ', stage, ' hold NaN or infinity in ',
                     count(*) FILTER (WHERE nan_count > 0), ' of ', count(*), ' samples')
         ELSE concat('hidden states of stage ', stage, ' are finite in ', count(*), ' samples') END AS reason,
    json_object('stage', stage, 'samples', count(*), 'with_nan', count(*) FILTER (WHERE nan_count > 0)) AS evidence
FROM hidden GROUP BY stage ORDER BY stage
