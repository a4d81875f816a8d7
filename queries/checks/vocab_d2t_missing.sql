-- id: vocab.d2t_missing
-- title: A reduced draft vocabulary has its map
-- severity: critical
-- certainty: sure
-- requires: contract:draft.draft_vocab_size, contract:target.vocab_size, contract:d2t.in_checkpoint,
--     contract:hot_token_id
-- causes: vocab.d2t_missing
-- about: Without a map, or with one of zeros, draft id 7 is taken for target id 7. A map of zeros is right where the
--        draft vocabulary is the first part of the target's (t2d then agrees) or the whole of it. Served heads are
--        padded to a multiple of 64 rows.
WITH rows AS (
    SELECT fact('draft.draft_vocab_size')::BIGINT AS served, expected('draft.draft_vocab_size')::BIGINT AS in_file
),
f AS (
    SELECT CASE WHEN served - in_file BETWEEN 1 AND 63 THEN in_file ELSE served END AS draft,
           fact('target.vocab_size')::BIGINT AS target,
           fact('d2t.in_checkpoint') = 'true' AS has_d2t, fact('d2t.all_zero') = 'true' AS zero,
           fact('hot_token_id') AS served,
           (fact('d2t.as_offsets') ->> '$.t2d_agreement')::DOUBLE AS agreement
    FROM rows
),
w AS (
    SELECT *,
        CASE WHEN draft IS NULL OR target IS NULL THEN 'unknown'
             WHEN draft >= target THEN 'whole'
             WHEN has_d2t AND zero AND coalesce(agreement, 0) < 1 THEN 'zero'
             WHEN served IS NULL AND has_d2t THEN 'unread'
             WHEN served IS NULL THEN 'missing'
             ELSE 'mapped' END AS found
    FROM f
)
SELECT
    CASE found WHEN 'unknown' THEN 'unknown' WHEN 'whole' THEN 'not_applicable' WHEN 'mapped' THEN 'ok'
               ELSE 'alarm' END AS status,
    'd2t' AS subject,
    CASE found
        WHEN 'unknown' THEN 'the sizes of the vocabularies were not seen: trace the start of the server'
        WHEN 'whole' THEN concat('the draft has the target''s whole vocabulary (', draft, '): no map is needed')
        WHEN 'mapped' THEN concat('the ', draft, ' draft ids are mapped into ', target, ' target ids')
        WHEN 'zero' THEN concat('d2t is zero everywhere: draft ids 0 to ', draft - 1, ' are taken for target ids',
                                ' (vocabulary ', target, ')')
        WHEN 'unread' THEN 'the checkpoint has a d2t, and the engine serves without a map'
        ELSE concat('the draft has ', draft, ' of the target''s ', target, ' tokens, and there is no d2t:',
                    ' draft ids are taken for target ids') END AS reason,
    json_object('draft_vocab_size', draft, 'vocab_size', target, 'd2t_in_checkpoint', has_d2t, 'all_zero', zero,
                'served_map', served::JSON) AS evidence
FROM w
