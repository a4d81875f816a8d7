-- id: vocab.d2t_encoding
-- title: d2t is encoded as the engine reads it
-- severity: critical
-- certainty: sure
-- requires: contract:d2t.in_checkpoint, contract:d2t.as_offsets, contract:d2t.as_ids
-- causes: vocab.d2t_encoding
-- about: Offsets are added to the draft id, absolute ids are used as they are. A map of absolute ids, read as
--        offsets, leaves the vocabulary or loses its agreement with t2d, while read as ids it is in order.
-- references: vllm#18909, SpecForge#602
WITH f AS (
    SELECT fact('d2t.as_offsets') AS offsets, fact('d2t.as_ids') AS ids, fact('hot_token_id') AS served,
           expected('hot_token_id') ->> '$.max_below' AS vocabulary, fact('d2t.all_zero') = 'true' AS zero
),
v AS (
    SELECT *,
        (offsets ->> '$.in_range') = 'true' AND (offsets ->> '$.unique') = 'true' AS offsets_sane,
        (ids ->> '$.in_range') = 'true' AND (ids ->> '$.unique') = 'true' AND (ids ->> '$.monotone') = 'true'
            AND NOT coalesce(zero, FALSE) AS ids_sane,
        (offsets ->> '$.t2d_agreement')::DOUBLE AS offsets_agree,
        (ids ->> '$.t2d_agreement')::DOUBLE AS ids_agree,
        (served ->> '$.max')::BIGINT = (ids ->> '$.max')::BIGINT
            AND (served ->> '$.max')::BIGINT <> (offsets ->> '$.max')::BIGINT AS served_as_ids
    FROM f
),
w AS (
    SELECT *,
        CASE WHEN offsets IS NULL THEN 'none'
             WHEN ids_sane AND coalesce(ids_agree > offsets_agree, NOT offsets_sane) THEN 'absolute'
             WHEN served_as_ids AND offsets_sane AND NOT ids_sane THEN 'reverse'
             ELSE 'fits' END AS found
    FROM v
)
SELECT
    CASE found WHEN 'none' THEN 'not_applicable' WHEN 'fits' THEN 'ok' ELSE 'alarm' END AS status,
    'd2t' AS subject,
    CASE found
        WHEN 'none' THEN 'the checkpoint has no d2t'
        WHEN 'fits' THEN 'd2t reads well as the engine reads it'
        WHEN 'absolute' THEN concat(
            'd2t holds absolute ids (', ids ->> '$.min', ' to ', ids ->> '$.max', ', ascending, each once), but the',
            ' engine adds them to the draft id: ids up to ', offsets ->> '$.max',
            ' in a vocabulary of ' || vocabulary,
            CASE WHEN ids_agree IS NOT NULL THEN concat('; t2d agrees with ', round(100 * ids_agree, 1),
                 ' % of them as ids and with ', round(100 * offsets_agree, 1), ' % as offsets') END)
        ELSE concat('d2t holds offsets, but the engine uses them as ids (up to ', served ->> '$.max', ')') END
        AS reason,
    json_object('as_offsets', offsets::JSON, 'as_ids', ids::JSON, 'served', served::JSON, 'vocabulary', vocabulary)
        AS evidence
FROM w
