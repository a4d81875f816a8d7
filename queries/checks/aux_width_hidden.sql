-- id: aux.width_hidden
-- title: The target hands over aux states and not its last hidden state
-- severity: critical
-- certainty: sure
-- requires: contract:forward.target_hidden_width, contract:target.hidden_size
-- causes: aux.not_captured
WITH f AS (
    SELECT fact('forward.target_hidden_width')::BIGINT AS width, expected('forward.target_hidden_width')::BIGINT AS due,
           fact('target.hidden_size')::BIGINT AS hidden
),
g AS (SELECT *, width < due AND width % hidden = 0 AS short FROM f)
SELECT
    CASE WHEN due IS NULL THEN 'not_applicable' WHEN width IS NULL THEN 'unknown' WHEN short THEN 'alarm' ELSE 'ok' END
        AS status,
    'target hidden state' AS subject,
    CASE WHEN due IS NULL THEN 'the draft needs no aux hidden states'
         WHEN width IS NULL THEN 'no forward was recorded: send a request'
         WHEN short THEN concat('the draft got hidden states ', width, ' wide, ', width // hidden,
                                ' x hidden size, where ', due // hidden, ' x ', hidden, ' = ', due, ' are due')
         ELSE concat('the draft got hidden states ', width, ' wide') END AS reason,
    json_object('width', width, 'due', due, 'hidden_size', hidden) AS evidence
FROM g
