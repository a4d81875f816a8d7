-- title: Every checkpoint tensor and where it landed
-- needs: checkpoint_keys
SELECT DISTINCT key, fate, shape, dtype, landed_in, checksum
FROM checkpoint_keys
ORDER BY key
