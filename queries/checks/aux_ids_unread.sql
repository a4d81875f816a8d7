-- id: aux.ids_unread
-- title: The engine reads the layer ids where they stand
-- severity: warning
-- certainty: harmless
-- requires: contract:aux.config_ids, contract:aux.layers_captured
-- causes: aux.layers_mismatch
-- about: SGLang reads eagle_config.eagle_aux_hidden_state_layer_ids and no other place. Ids elsewhere are harmless as
--        long as its default happens to be the same layers.
WITH unread AS (SELECT * FROM aux_layers WHERE NOT read),
f AS (
    SELECT fact('aux.use_aux_hidden_state') IS NOT NULL AND expected('aux.use_aux_hidden_state') IS NULL AS unneeded
)
SELECT
    CASE WHEN as_inputs OR as_outputs THEN 'alarm' ELSE 'ok' END AS status,
    path AS subject,
    CASE WHEN as_inputs OR as_outputs
         THEN concat('layer ids ', ids::VARCHAR, ' stand at ', path, ', which the engine does not read;',
                     ' it captures the same layers all the same')
         ELSE concat('the ids at ', path, ' differ from what is captured: see aux.layers') END AS reason,
    json_object('path', path, 'ids', ids, 'captured_inputs_of_layers', captured) AS evidence
FROM unread, f
WHERE NOT unneeded
UNION ALL
SELECT CASE WHEN unneeded THEN 'not_applicable' ELSE 'ok' END, 'configuration',
    CASE WHEN unneeded THEN 'the draft needs no aux hidden states'
         WHEN EXISTS (FROM aux_layers) THEN 'all layer ids stand where the engine reads them'
         ELSE 'the configuration names no layers' END,
    json_object('places', (SELECT count(*) FROM aux_layers))
FROM f
WHERE unneeded OR NOT EXISTS (FROM unread)
