-- title: Tensors of the draft's checkpoint and where they landed, those that landed nowhere first
-- param limit: int = 400, how many
SELECT DISTINCT key, fate, shape, dtype, landed_in, rms
FROM checkpoint_keys
ORDER BY fate IS NOT DISTINCT FROM 'loaded', key, rms, landed_in
LIMIT $limit
