-- id: aux.states
-- title: As many aux hidden states are captured as the fusion layer takes
-- severity: critical
-- certainty: sure
-- requires: contract:aux.count, contract:aux.layers_captured
-- causes: aux.not_captured
-- rank: 3
-- fix: Name as many distinct layers of the target as the fusion layer takes, in {draft}/config.json:
--     "eagle_config": {"eagle_aux_hidden_state_layer_ids": [...]}, those that the draft was trained on. The default
--     [2, n/2, n-3] gives distinct ones from 8 layers on: check that {target} is the target that the draft belongs to.
-- about: A layer named twice, or one that the target does not have, gives no state of its own.
WITH f AS (
    SELECT expected('aux.count')::BIGINT AS due, fact('aux.count')::BIGINT AS counted,
           try_cast(fact('aux.layers_captured') AS BIGINT[]) AS layers,
           fact('target.num_hidden_layers')::BIGINT AS depth
),
g AS (
    SELECT *, least(counted, len(list_filter(list_distinct(layers),
        lambda x: x >= 0 AND x <= coalesce(depth, x)))) AS states
    FROM f
)
SELECT
    CASE WHEN due IS NULL THEN 'not_applicable' WHEN states IS NULL THEN 'unknown'
         WHEN states < due THEN 'alarm' ELSE 'ok' END AS status,
    'aux hidden states' AS subject,
    CASE WHEN due IS NULL THEN 'the draft needs no aux hidden states'
         WHEN states IS NULL THEN 'it was not seen how many states are captured: trace the start of the server'
         WHEN states < due THEN concat('the fusion layer takes ', due, ' aux hidden states, the target gives ', states,
             CASE WHEN layers IS NULL OR len(layers) = 0 THEN ': no layer was set'
                  ELSE concat(' (inputs of layers ', layers::VARCHAR, ' of ', depth, ')') END)
         ELSE concat(states, ' aux hidden states are captured, as the fusion layer takes') END AS reason,
    json_object('due', due, 'captured', states, 'layers', layers, 'target_layers', depth) AS evidence
FROM g
