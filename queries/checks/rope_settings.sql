-- id: rope.settings
-- title: The draft's rotary settings are the target's
-- severity: warning
-- certainty: possible
-- requires: contract:draft.rope, contract:target.rope
-- causes: rope.mismatch
-- not_for: standalone: a language model of its own has rotary settings of its own
-- about: Drafts are trained with the target's settings most often, and may be trained with others. A setting that one
--        side does not name is not compared, nor are head sizes, which drafts choose freely.
-- references: TensorRT-LLM#19036
WITH f AS (SELECT fact('draft.rope') AS d, fact('target.rope') AS t),
k AS (
    SELECT key, d ->> key AS draft, t ->> key AS target
    FROM f, (SELECT unnest(['theta', 'scaling', 'partial']) AS key)
),
w AS (SELECT *, draft <> target AS differs FROM k WHERE draft IS NOT NULL AND target IS NOT NULL)
SELECT 'alarm' AS status, key AS subject,
    concat('the draft''s rotary ', key, ' is ', draft, ', the target''s ', target) AS reason,
    json_object('setting', key, 'draft', draft, 'target', target) AS evidence
FROM w WHERE differs
UNION ALL
SELECT CASE WHEN count(*) = 0 THEN 'unknown' ELSE 'ok' END, 'rotary settings',
    CASE WHEN count(*) = 0 THEN 'no rotary setting of both models is known: trace the start of the server'
         ELSE concat('draft and target agree on ', string_agg(key, ', ')) END,
    json_object('compared', count(*))
FROM w HAVING count(*) FILTER (WHERE differs) = 0
