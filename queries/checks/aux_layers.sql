-- id: aux.layers
-- title: The layers captured are those that the draft was trained on
-- severity: critical
-- certainty: sure
-- requires: contract:aux.layers_captured, contract:aux.config_ids
-- causes: aux.layers_mismatch
-- about: What the draft was trained on is known from its configuration alone: a draft whose only ids are wrong cannot
--        be told from a right one without a replay.
-- references: tokenspeed#526, sglang#25454, sglang#32334
WITH wrong AS (
    SELECT * FROM aux_layers
    WHERE NOT read AND captured IS NOT NULL AND NOT as_inputs AND (means_inputs OR NOT as_outputs)
),
engine AS (
    SELECT try_cast(fact('aux.layers_captured') AS BIGINT[]) AS captured,
           try_cast(expected('aux.layers_captured') AS BIGINT[]) AS due
),
verdict AS (
    SELECT *, list_sort(due) <> list_sort(captured)
        AND NOT EXISTS (FROM aux_layers WHERE NOT read AND (as_inputs OR as_outputs)) AS differ
    FROM engine
)
SELECT
    'alarm' AS status, path AS subject,
    concat('the draft''s configuration names layers ', ids::VARCHAR, ' (', path, CASE WHEN means_inputs
               THEN ', meaning their inputs' END, '); the target captures the inputs of layers ', captured::VARCHAR,
           '; the engine does not read this place',
           (SELECT concat(', but ', any_value(path), ' = ', any_value(ids)::VARCHAR) FROM aux_layers WHERE read
            HAVING count(*) > 0)) AS reason,
    json_object('path', path, 'ids', ids, 'captured_inputs_of_layers', captured, 'read', read) AS evidence
FROM wrong
UNION ALL
SELECT
    CASE WHEN captured IS NULL THEN 'not_applicable'
         WHEN differ THEN 'alarm' ELSE 'ok' END,
    'layers_to_capture',
    CASE WHEN captured IS NULL THEN 'no layers are captured'
         WHEN differ
             THEN concat('the inputs of layers ', due::VARCHAR, ' are due, those of layers ', captured::VARCHAR,
                         ' are captured')
         ELSE concat('the inputs of layers ', captured::VARCHAR, ' are captured',
                     CASE WHEN EXISTS (FROM aux_layers) THEN ', as the configuration says'
                          ELSE '; the draft''s configuration names none, so these are the engine''s default' END) END,
    json_object('captured', captured, 'due', due)
FROM verdict
WHERE NOT EXISTS (FROM wrong)
