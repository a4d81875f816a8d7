-- id: target.sibling
-- title: The embeddings in the draft's file are not those of another version of the target
-- severity: warning
-- certainty: possible
-- requires: contract:embed.in_checkpoint, contract:embed.replaced
-- causes: target.mismatch
-- not_for: standalone: a language model of its own has embeddings of its own
-- about: A draft's file holds a copy of the target's embeddings. A copy that points the same way as the served ones
--        and is not the same comes from another version, a fine-tune or another quantisation of the target.
-- param same_tensor_difference: float = 0.05, relative difference below which tensors are equal up to rounding
-- param sibling_cosine: float = 0.5, cosine from which two embeddings are relatives
-- references: vllm-ascend#5974
WITH f AS (SELECT fact('embed.replaced') AS r),
g AS (
    SELECT r, (r ->> '$.changed') = 'true' AS changed, (r ->> '$.relative_difference')::DOUBLE AS difference,
           (r ->> '$.cosine')::DOUBLE AS cosine
    FROM f
)
SELECT
    CASE WHEN r IS NULL THEN 'not_applicable'
         WHEN changed AND difference > $same_tensor_difference AND cosine > $sibling_cosine THEN 'alarm' ELSE 'ok' END
        AS status,
    'embed_tokens' AS subject,
    CASE WHEN r IS NULL THEN 'the checkpoint has no embeddings of its own'
         WHEN changed AND difference > $same_tensor_difference AND cosine > $sibling_cosine
             THEN concat('the embeddings of the checkpoint resemble the target''s (cosine ', round(cosine, 3),
                         ') and are not the same (relative difference ', round(difference, 3), ')')
         ELSE 'the embeddings of the checkpoint are the target''s, or none of its kind' END AS reason,
    json_object('replaced', r::JSON) AS evidence
FROM g
