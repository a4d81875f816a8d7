-- id: lm_head.replaced
-- title: The draft runs on the head of its checkpoint
-- severity: critical
-- certainty: sure
-- requires: contract:head.in_checkpoint, contract:head.shared_with_target
-- causes: lm_head.replaced
-- rank: 2
-- fix: Set "draft_vocab_size" in {draft}/config.json to the number of rows of lm_head (where it is missing or
--     null SGLang serves the target's head); restart the server.
-- about: EAGLE-3 trains a head of its own; another head makes noise of its outputs.
-- param same_tensor_difference: float = 0.05, relative difference below which tensors are equal up to rounding
-- references: SpecForge#478
WITH f AS (
    SELECT fact('head.replaced') AS r, fact('head.shared_with_target') AS shared,
           coalesce(fact('head.in_checkpoint') ->> '$.key', fact('head.in_checkpoint')) AS key,
           coalesce(fact('head.in_checkpoint') NOT IN ('false', '{}'), FALSE) AS in_file,
           fact('draft.load_lm_head_from_target') AS from_target
),
g AS (
    SELECT *, coalesce((r ->> '$.changed') = 'true' AND coalesce(
                  (r ->> '$.relative_difference')::DOUBLE > $same_tensor_difference, TRUE), FALSE)
              OR (r IS NULL AND in_file AND shared = 'true') AS replaced
    FROM f
)
SELECT
    CASE WHEN NOT in_file THEN 'not_applicable' WHEN replaced THEN 'alarm' ELSE 'ok' END AS status,
    'lm_head' AS subject,
    CASE WHEN NOT in_file THEN 'the checkpoint has no head'
         WHEN replaced THEN concat('the head of the checkpoint is not the one that is served',
             CASE WHEN shared = 'true' THEN ': the target''s is' END,
             '; replaced by ' || (r ->> '$.by'),
             '; relative difference ' || round((r ->> '$.relative_difference')::DOUBLE, 3)::VARCHAR,
             CASE WHEN from_target = 'true' THEN '; load_lm_head_from_target is on, as without draft_vocab_size' END)
         ELSE 'the head served is that of the checkpoint' END AS reason,
    json_object('replaced', r::JSON, 'shared_with_target', shared, 'load_lm_head_from_target', from_target)
        AS evidence
FROM g
