-- title: Draft parameters: what was loaded into them, what they share, their RMS
-- needs: params
SELECT side, name, shape, dtype, elements, elements_loaded, checkpoint_keys, shared_with, rms, constant, nan_count,
       checksum <> loaded_checksum AS changed_since_loading
FROM params
ORDER BY side, name
