-- id: weights.layers
-- title: The engine builds every decoder layer of the checkpoint
-- severity: critical
-- certainty: sure
-- requires: params, checkpoint_keys, contract:draft.fc
-- causes: weights.not_loaded
-- rank: 2
-- fix: Set "num_hidden_layers" in {draft}/config.json to the number of decoder layers in its file, and serve it with a
--     release that builds so many (SGLang's EAGLE-3 class: from 0.5.12 on).
-- about: A layer that the configuration does not count has no parameters, so that its tensors fit none. A draft without
--        a fusion layer (multi-token prediction) may lie in the target's own file, whose layers are not the draft's.
WITH built AS (
    SELECT coalesce(max(nullif(regexp_extract(name, '(^|\.)layers\.(\d{1,9})\.', 2), '')::BIGINT), 0) + 1 AS layers,
           count(*) AS params
    FROM draft_params
),
numbered AS (
    SELECT key, fits, nullif(regexp_extract(key, '(^|\.)layers\.(\d{1,9})\.', 2), '')::BIGINT AS layer FROM dropped_keys
),
lost AS (
    SELECT layer, count(*) AS tensors, min(key) AS example, any_value(b.layers) AS layers
    FROM numbered n, built b WHERE fits IS NULL AND layer >= b.layers AND fact('draft.fc') IS NOT NULL
    GROUP BY layer
)
SELECT
    'alarm' AS status,
    concat('layers.', layer) AS subject,
    concat('decoder layer ', layer, ' of the checkpoint landed nowhere (', tensors, ' tensors, ', example,
           ' among them): the engine built ', layers, ' decoder layer', CASE WHEN layers > 1 THEN 's' END,
           ', and num_hidden_layers is ', coalesce(fact('draft.config') ->> '$.num_hidden_layers', 'not named')) AS reason,
    json_object('layer', layer, 'tensors', tensors, 'example', example, 'built', layers) AS evidence
FROM lost
UNION ALL
SELECT
    CASE WHEN fact('draft.fc') IS NULL THEN 'not_applicable' WHEN params = 0 THEN 'unknown' ELSE 'ok' END,
    'decoder layers',
    CASE WHEN fact('draft.fc') IS NULL THEN 'the draft has no fusion layer, and may lie in the target''s own file'
         WHEN params = 0 THEN 'the draft''s parameters were not seen: trace the start of the server'
         ELSE concat('no decoder layer of the checkpoint is left over; the engine built ', layers) END,
    json_object('built', layers)
FROM built WHERE NOT EXISTS (FROM lost)
