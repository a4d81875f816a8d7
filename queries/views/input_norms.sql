-- title: Norms in front of the fusion layer: what configuration, checkpoint and engine have; one row for each kind
-- needs: contract, fact, checkpoint_keys, params
-- column norm: input_norm (one over all states) or fc_norm (one for each)
-- column asked: the draft's configuration switches it on; NULL if that was not recorded
-- column tensors: its tensors in the checkpoint
-- column dropped: those that landed nowhere
-- column served: parameters of it that the engine has
WITH c AS (SELECT fact('draft.config') AS config),
n AS (
    SELECT 'input_norm' AS norm, '(^|\.)input_norm\.' AS name,
        coalesce(config ->> '$.eagle_config.norm_before_fc', config ->> '$.norm_before_fc') AS flag, config FROM c
    UNION ALL
    SELECT 'fc_norm', '(^|\.)(fc_norm\.|aux_norm_(low|mid|high)\.)',
        coalesce(config ->> '$.fc_norm', config ->> '$.use_aux_norm'), config FROM c
)
SELECT norm, CASE WHEN config IS NOT NULL THEN coalesce(flag NOT IN ('false', '0', '[]', ''), FALSE) END AS asked,
    (SELECT count(*) FROM checkpoint_keys WHERE regexp_matches(key, n.name)) AS tensors,
    (SELECT count(*) FROM checkpoint_keys WHERE regexp_matches(key, n.name) AND fate = 'dropped') AS dropped,
    (SELECT count(*) FROM params p WHERE p.side = 'draft' AND regexp_matches(p.name, n.name)) AS served
FROM n
