-- id: vocab.d2t_order
-- title: d2t is in ascending order
-- severity: warning
-- certainty: possible
-- requires: contract:d2t.in_checkpoint, contract:d2t.as_offsets
-- causes: vocab.d2t_mismatch
-- about: Out of order, but each token once and nothing that contradicts it: some trainers may sort otherwise.
WITH f AS (SELECT fact('d2t.as_offsets') AS m)
SELECT
    CASE WHEN m IS NULL THEN 'not_applicable'
         WHEN (m ->> '$.monotone') = 'false' THEN 'alarm' ELSE 'ok' END AS status,
    'd2t' AS subject,
    CASE WHEN m IS NULL THEN 'the checkpoint has no d2t'
         WHEN (m ->> '$.monotone') = 'false' THEN 'the mapped ids are not in ascending order, as trainers write them'
         ELSE 'the mapped ids are in ascending order' END AS reason,
    json_object('as_offsets', m::JSON) AS evidence
FROM f
