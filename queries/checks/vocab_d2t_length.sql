-- id: vocab.d2t_length
-- title: d2t has one entry for each row of the served head
-- severity: critical
-- certainty: sure
-- requires: contract:d2t.in_checkpoint, contract:d2t.length
-- causes: vocab.d2t_mismatch
-- rank: 3
-- fix: Take d2t and lm_head from the same training run: one entry of d2t for each row of lm_head in
--     {draft}/model.safetensors.
-- about: Engines pad a head to a multiple of 64 rows.
WITH f AS (
    SELECT fact('d2t.length')::BIGINT AS length, expected('d2t.length')::BIGINT AS rows,
           fact('d2t.in_checkpoint') = 'true' AS in_file
),
g AS (SELECT *, length = rows OR (rows % 64 = 0 AND rows - length BETWEEN 1 AND 63) AS fits FROM f)
SELECT
    CASE WHEN NOT in_file THEN 'not_applicable' WHEN length IS NULL OR rows IS NULL THEN 'unknown'
         WHEN fits THEN 'ok' ELSE 'alarm' END AS status,
    'd2t' AS subject,
    CASE WHEN NOT in_file THEN 'the checkpoint has no d2t'
         WHEN length IS NULL OR rows IS NULL
             THEN 'the length of d2t or the rows of the served head were not seen: trace the start of the server'
         WHEN fits THEN concat('d2t has ', length, ' entries, the served head ', rows, ' rows',
                               CASE WHEN length < rows THEN ' with its padding' END)
         ELSE concat('d2t has ', length, ' entries, the served head ', rows, ' rows') END AS reason,
    json_object('d2t_length', length, 'head_rows', rows) AS evidence
FROM g
