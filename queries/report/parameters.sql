-- title: Parameters as served, those that nothing fully wrote first
-- param limit: int = 400, how many
SELECT side, name, shape, dtype, elements, elements_loaded, checkpoint_keys, shared_with, rms, nan_count,
       checksum <> loaded_checksum AS changed
FROM params
ORDER BY NOT coalesce(elements_loaded < elements AND shared_with IS NULL, FALSE), side, name
LIMIT $limit
