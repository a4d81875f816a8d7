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
),
k AS (
    SELECT n.norm, count(*) AS tensors, count(*) FILTER (WHERE t.fate = 'dropped') AS dropped
    FROM n JOIN checkpoint_keys t ON regexp_matches(t.key, n.name) GROUP BY n.norm
),
p AS (
    SELECT n.norm, count(*) AS served
    FROM n JOIN params t ON t.side = 'draft' AND regexp_matches(t.name, n.name) GROUP BY n.norm
)
SELECT n.norm,
    CASE WHEN n.config IS NOT NULL THEN coalesce(n.flag NOT IN ('false', '0', '[]', ''), FALSE) END AS asked,
    coalesce(k.tensors, 0) AS tensors, coalesce(k.dropped, 0) AS dropped, coalesce(p.served, 0) AS served
FROM n LEFT JOIN k ON k.norm = n.norm LEFT JOIN p ON p.norm = n.norm
ORDER BY n.norm DESC
