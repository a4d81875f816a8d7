-- id: aux.asked
-- title: The target was told which layers to capture, and captures
-- severity: critical
-- certainty: sure
-- requires: contract:aux.set_layers_calls, contract:aux.count
-- causes: aux.not_captured
-- rank: 2
-- fix: Use an engine release whose class for this target passes set_eagle3_layers_to_capture on to its language
--     model (wrappers of multimodal models have swallowed it), with --speculative-algorithm EAGLE3.
-- about: Wrappers around a language model have swallowed the call, so that the inner model never hears of it.
WITH f AS (
    SELECT expected('aux.count')::BIGINT AS due, try_cast(fact('aux.set_layers_calls') AS BIGINT) AS calls,
           fact('aux.capture_enabled') AS flags
),
g AS (
    SELECT *, CASE WHEN json_type(flags) = 'OBJECT'
        THEN NOT list_bool_or(list_transform(json_keys(flags),
             lambda k: json_extract_string(flags, '$."' || k || '"') = 'true')) END AS all_off
    FROM f
)
SELECT
    CASE WHEN due IS NULL THEN 'not_applicable' WHEN calls = 0 OR all_off THEN 'alarm' WHEN calls IS NULL THEN 'unknown'
         ELSE 'ok' END AS status,
    'set_eagle3_layers_to_capture' AS subject,
    CASE WHEN due IS NULL THEN 'the draft has no fusion layer'
         WHEN calls = 0 THEN 'set_eagle3_layers_to_capture was never called on the target'
         WHEN all_off THEN 'the target''s capture flags are all off'
         WHEN calls IS NULL THEN 'calls on the target were not seen: trace the start of the server'
         ELSE 'the target was told which layers to capture' END AS reason,
    json_object('calls', calls, 'capture_enabled', flags::JSON) AS evidence
FROM g
