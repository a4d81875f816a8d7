-- id: aux.asked
-- title: The target was told which layers to capture, and captures
-- severity: critical
-- certainty: sure
-- requires: contract:aux.set_layers_calls, contract:aux.count
-- causes: aux.not_captured
-- rank: 2
-- fix: Use an engine release whose class for this target passes set_eagle3_layers_to_capture on to its language
--     model (wrappers of multimodal models have swallowed it), with --speculative-algorithm EAGLE3.
-- about: Wrappers around a language model have swallowed the call, so that the inner model never hears of it; others
--        have no such method. The flag that counts is the innermost one: its class runs the layers.
WITH f AS (
    SELECT expected('aux.count')::BIGINT AS due, try_cast(fact('aux.set_layers_calls') AS BIGINT) AS calls,
           fact_source('aux.set_layers_calls') AS of_calls, fact('aux.capture_enabled') AS flags,
           fact_source('aux.capture_enabled') AS inner_path, fact('target.architecture') AS class,
           try_cast(fact('aux.layers_requested') AS BIGINT[]) AS requested,
           try_cast(expected('aux.layers_captured') AS BIGINT[]) AS layers
),
g AS (
    SELECT *, CASE WHEN json_type(flags) = 'OBJECT'
        THEN list_filter(json_keys(flags), lambda k: json_extract_string(flags, '$."' || k || '"') = 'true') END AS on_at,
        json_extract_string(flags, '$."' || inner_path || '"') AS inner_flag
    FROM f
),
h AS (SELECT *, coalesce(inner_flag = 'false', len(on_at) = 0 AND len(json_keys(flags)) > 0) AS off FROM g)
SELECT
    CASE WHEN due IS NULL THEN 'not_applicable' WHEN calls = 0 OR off THEN 'alarm' WHEN calls IS NULL THEN 'unknown'
         ELSE 'ok' END AS status,
    'set_eagle3_layers_to_capture' AS subject,
    CASE WHEN due IS NULL THEN 'the draft needs no aux hidden states'
         WHEN calls = 0 AND contains(of_calls, ' has no ')
             THEN concat(of_calls, ' in this release of the engine: the target cannot be asked for aux hidden states')
         WHEN calls = 0 THEN 'set_eagle3_layers_to_capture was never called on the target'
         WHEN inner_flag = 'false'
             THEN concat(class, ' was asked for the states of ', coalesce('layers ' || requested::VARCHAR,
                         concat('its default layers', ' ' || layers::VARCHAR)), ', and capture_aux_hidden_states of ', inner_path,
                         ', which runs the layers, is off',
                         CASE WHEN len(on_at) > 0 THEN concat('; it is on in ', array_to_string(on_at, ', ')) END)
         WHEN off THEN 'the target''s capture flags are all off'
         WHEN calls IS NULL THEN 'calls on the target were not seen: trace the start of the server'
         ELSE 'the target was told which layers to capture' END AS reason,
    json_object('calls', calls, 'capture_enabled', flags::JSON) AS evidence
FROM h
