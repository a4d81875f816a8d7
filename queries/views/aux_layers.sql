-- title: Aux layers that each place of the draft's configuration names, against those captured
-- needs: contract, fact, fact_source
-- about: Engines disagree on what an id means: SGLang reads `eagle_config` and captures the layer's output, which is
--        the next layer's input; vLLM and speculators mean the layer's input. Layers here are inputs.
-- column path: where in the configuration the ids stand
-- column captured: layers whose input is captured, sorted
-- column as_outputs: the captured layers are these ids read as outputs of layers
-- column as_inputs: the captured layers are these ids read as inputs of layers
-- column means_inputs: the configuration was written by a library that means inputs
-- column read: the engine read this place
WITH f AS (
    SELECT fact('aux.config_ids') AS places,
           list_sort(try_cast(fact('aux.layers_captured') AS BIGINT[])) AS captured,
           fact('aux.layers_requested') AS requested,
           coalesce(fact_source('aux.layers_requested'), '') AS source,
           coalesce(len(list_filter(json_keys(fact('draft.config')), lambda k: starts_with(k, 'speculators_'))) > 0,
                    FALSE) AS speculators
),
p AS (SELECT *, unnest(json_keys(places)) AS path FROM f WHERE json_type(places) = 'OBJECT'),
i AS (SELECT *, try_cast(json_extract(places, '$."' || path || '"') AS BIGINT[]) AS ids FROM p)
SELECT
    path, ids, captured,
    list_sort(list_transform(ids, lambda x: x + 1)) = captured AS as_outputs,
    list_sort(ids) = captured AS as_inputs,
    speculators AND path NOT LIKE '%eagle_config%' AS means_inputs,
    requested IS NOT NULL
        AND (path = source OR ends_with(source, ' ' || path) OR path LIKE '%eagle_config%') AS read
FROM i
WHERE ids IS NOT NULL
