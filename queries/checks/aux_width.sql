-- id: aux.width
-- title: The hidden state has the width that the fusion layer takes
-- severity: critical
-- certainty: sure
-- requires: contract:forward.draft_input_width, contract:forward.target_hidden_width
-- causes: aux.width_mismatch
WITH f AS (
    SELECT fact('forward.draft_input_width')::BIGINT AS input, expected('forward.draft_input_width')::BIGINT AS due,
           fact('forward.target_hidden_width')::BIGINT AS width
)
SELECT
    CASE WHEN due IS NULL THEN 'not_applicable' WHEN coalesce(input, width) IS NULL THEN 'unknown'
         WHEN input <> due OR width <> due THEN 'alarm' ELSE 'ok' END AS status,
    'draft input' AS subject,
    CASE WHEN due IS NULL THEN 'the draft needs no aux hidden states'
         WHEN coalesce(input, width) IS NULL THEN 'no forward was recorded: send a request'
         WHEN input <> due OR width <> due
             THEN concat('the fusion layer takes ', due, ' values; the target gave ', width, ', the draft got ', input)
         ELSE concat('the draft got ', due, ' values, as its fusion layer takes') END AS reason,
    json_object('target_width', width, 'draft_input_width', input, 'due', due) AS evidence
FROM f
