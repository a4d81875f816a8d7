-- id: fc.applied
-- title: The fusion layer runs
-- severity: critical
-- certainty: sure
-- requires: contract:draft.fc, contract:forward.fc_applied
-- causes: fc.bypassed
-- references: sglang#21272
WITH f AS (
    SELECT fact('draft.fc') AS fc, fact('forward.fc_applied') AS applied,
           fact('forward.draft_input_width')::BIGINT AS width,
           (SELECT coalesce(sum(fc_not_applied), 0)::BIGINT FROM round_counts) AS without,
           (SELECT coalesce(sum(fc_known), 0)::BIGINT FROM round_counts) AS rounds
),
g AS (SELECT *, applied = 'false' OR without * 2 > rounds AS bypassed FROM f)
SELECT
    CASE WHEN fc IS NULL THEN 'not_applicable' WHEN bypassed THEN 'alarm'
         WHEN applied IS NULL AND rounds = 0 THEN 'unknown' ELSE 'ok' END AS status,
    'fc' AS subject,
    CASE WHEN fc IS NULL THEN 'the draft has no fusion layer'
         WHEN bypassed THEN concat('the fusion layer (', fc ->> '$.in_features', ' to ', fc ->> '$.out_features',
                                   ') did not run where the first token is drafted; its input was ', width, ' wide',
                                   CASE WHEN rounds > 0 THEN concat(', in ', without, ' of ', rounds, ' rounds') END)
         WHEN applied IS NULL AND rounds = 0 THEN 'no forward of the draft was recorded: send a request'
         ELSE 'the fusion layer ran where the first token is drafted' END AS reason,
    json_object('fc', fc::JSON, 'applied', applied, 'input_width', width, 'rounds_without', without, 'rounds', rounds)
        AS evidence
FROM g
