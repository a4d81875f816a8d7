-- id: embed.replaced
-- title: The draft runs on the embeddings of its checkpoint
-- severity: warning
-- certainty: possible
-- requires: contract:embed.in_checkpoint, contract:embed.replaced
-- causes: embed.mismatch
-- about: SGLang gives every EAGLE-3 draft the target's embeddings. A file often holds a copy of them, or leftovers that
--        were never trained with; only a draft trained on embeddings of its own loses by it.
-- param same_tensor_difference: float = 0.05, relative difference below which tensors are equal up to rounding
-- references: vllm#28549
WITH f AS (SELECT fact('embed.replaced') AS r, fact('embed.shared_with_target') AS shared),
g AS (SELECT *, (r ->> '$.changed') = 'true' AS changed, (r ->> '$.relative_difference')::DOUBLE AS difference FROM f)
SELECT
    CASE WHEN r IS NULL THEN 'not_applicable'
         WHEN changed AND coalesce(difference > $same_tensor_difference, TRUE) THEN 'alarm' ELSE 'ok' END AS status,
    'embed_tokens' AS subject,
    CASE WHEN r IS NULL THEN 'the checkpoint has no embeddings of its own: the target''s are served'
         WHEN changed AND coalesce(difference > $same_tensor_difference, TRUE)
             THEN concat('the embeddings of the checkpoint were replaced by others (relative difference ',
                         coalesce(round(difference, 3)::VARCHAR, 'unknown'),
                         ', cosine ' || round((r ->> '$.cosine')::DOUBLE, 3)::VARCHAR, ')',
                         CASE WHEN shared = 'true' THEN ': the target''s are served' END)
         ELSE 'the embeddings served are those of the checkpoint' END AS reason,
    json_object('replaced', r::JSON, 'shared_with_target', shared) AS evidence
FROM g
