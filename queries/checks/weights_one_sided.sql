-- id: weights.one_sided
-- title: Draft and target are updated together
-- severity: warning
-- certainty: possible
-- requires: contract
-- causes: weights.changed
-- about: A draft imitates one target. A small update of one side may cost little.
-- references: miles#1926, sglang#27718
WITH u AS (
    SELECT count(*) FILTER (WHERE detail ->> '$.side' = 'draft') AS draft,
           count(*) FILTER (WHERE detail ->> '$.side' = 'target') AS target
    FROM events WHERE kind = 'weights_changed'
)
SELECT
    CASE WHEN draft = 0 AND target = 0 THEN 'not_applicable' WHEN draft = 0 OR target = 0 THEN 'alarm' ELSE 'ok' END
        AS status,
    'updates of weights' AS subject,
    CASE WHEN draft = 0 AND target = 0 THEN 'no update of weights was recorded'
         WHEN draft = 0 THEN concat('the target was updated ', target, ' times, the draft never')
         WHEN target = 0 THEN concat('the draft was updated ', draft, ' times, the target never')
         ELSE concat('the draft was updated ', draft, ' times, the target ', target, ' times') END AS reason,
    json_object('draft', draft, 'target', target) AS evidence
FROM u
