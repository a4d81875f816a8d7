-- id: aux.flag
-- title: Aux hidden states are switched on
-- severity: critical
-- certainty: sure
-- requires: contract:aux.use_aux_hidden_state
-- causes: aux.not_captured
-- rank: 1
-- fix: Set "use_aux_hidden_state": true under "eagle_config" in {draft}/config.json, or take the key away
--     (true is the default); restart the server.
WITH f AS (
    SELECT fact('aux.use_aux_hidden_state') AS actual, expected('aux.use_aux_hidden_state') AS due,
           fact_source('aux.use_aux_hidden_state') AS source
)
SELECT
    CASE WHEN due = 'true' AND actual = 'false' THEN 'alarm' WHEN due = 'true' THEN 'ok' ELSE 'not_applicable' END
        AS status,
    'use_aux_hidden_state' AS subject,
    CASE WHEN due = 'true' AND actual = 'false'
         THEN concat('use_aux_hidden_state is false', ' (' || source || ')', ', and the draft has a fusion',
                     ' layer that needs aux hidden states')
         WHEN due = 'true' THEN 'the engine was told to capture aux hidden states'
         ELSE 'the draft needs no aux hidden states' END AS reason,
    json_object('use_aux_hidden_state', actual, 'due', due) AS evidence
FROM f
