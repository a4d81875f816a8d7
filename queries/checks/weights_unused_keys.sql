-- id: weights.unused_keys
-- title: The engine uses every tensor of the checkpoint
-- severity: warning
-- certainty: possible
-- requires: checkpoint_keys
-- causes: weights.not_loaded
-- about: Tensors that fit no unfilled parameter: a leftover of training, or a part that this engine does not have.
WITH unused AS (SELECT * FROM dropped_keys WHERE fits IS NULL)
SELECT
    'alarm' AS status,
    key AS subject,
    concat(key, ' ', shape::VARCHAR, ' is in the checkpoint, the engine dropped it, and no parameter waits for it')
        AS reason,
    json_object('key', key, 'shape', shape) AS evidence
FROM unused
UNION ALL
SELECT 'ok', 'checkpoint', concat('no tensor was left over, of ', count(*)), json_object('keys', count(*))
FROM checkpoint_keys
HAVING NOT EXISTS (FROM unused)
