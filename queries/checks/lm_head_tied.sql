-- id: lm_head.tied
-- title: The head is not tied to the embeddings where the checkpoint has a head
-- severity: critical
-- certainty: sure
-- requires: contract:draft.tie_word_embeddings
-- causes: lm_head.replaced
-- rank: 1
-- fix: Set "tie_word_embeddings": false in {draft}/config.json; restart the server.
WITH f AS (SELECT fact('draft.tie_word_embeddings') AS tied, expected('draft.tie_word_embeddings') AS due)
SELECT
    CASE WHEN due IS NULL THEN 'not_applicable' WHEN tied = 'true' AND due = 'false' THEN 'alarm' ELSE 'ok' END
        AS status,
    'tie_word_embeddings' AS subject,
    CASE WHEN due IS NULL THEN 'the checkpoint has no head'
         WHEN tied = 'true' AND due = 'false'
             THEN concat('tie_word_embeddings is true: the embeddings serve as head, and the trained head of the',
                         ' checkpoint is not used')
         ELSE 'the head is a parameter of its own' END AS reason,
    json_object('tie_word_embeddings', tied, 'due', due) AS evidence
FROM f
