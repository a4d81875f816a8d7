-- title: Checkpoint tensors that did not land in a parameter
-- needs: checkpoint_keys
SELECT DISTINCT key, fate, shape, dtype, elements, rms
FROM checkpoint_keys
WHERE fate IS DISTINCT FROM 'loaded'
ORDER BY fate, key
