-- id: vocab.d2t_length
-- title: d2t has one entry for each row of the served head
-- severity: critical
-- certainty: sure
-- requires: contract:d2t.in_checkpoint, contract:d2t.length
-- causes: vocab.d2t_mismatch
WITH f AS (
    SELECT fact('d2t.length')::BIGINT AS length, expected('d2t.length')::BIGINT AS rows,
           fact('d2t.in_checkpoint') = 'true' AS in_file
)
SELECT
    CASE WHEN NOT in_file THEN 'not_applicable' WHEN length IS NULL OR rows IS NULL THEN 'unknown'
         WHEN length = rows THEN 'ok' ELSE 'alarm' END AS status,
    'd2t' AS subject,
    CASE WHEN NOT in_file THEN 'the checkpoint has no d2t'
         WHEN length IS NULL OR rows IS NULL
             THEN 'the length of d2t or the rows of the served head were not seen: trace the start of the server'
         WHEN length = rows THEN concat('d2t and the served head have ', rows, ' rows each')
         ELSE concat('d2t has ', length, ' entries, the served head ', rows, ' rows') END AS reason,
    json_object('d2t_length', length, 'head_rows', rows) AS evidence
FROM f
