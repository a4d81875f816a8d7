-- title: Parameters that one checkpoint tensor filled whole, beside that tensor
-- needs: draft_params, params, checkpoint_keys
-- about: Left out: what was changed after loading (its checksum differs from that right after), and what the target
--        shares.
-- column difference: relative difference of the root mean squares
-- column quantised: the file's type is one of eight bits or fewer
SELECT p.name, k.key, p.dtype, k.dtype AS file_dtype, p.rms, k.rms AS file_rms,
       abs(p.rms - k.rms) / nullif(greatest(p.rms, k.rms), 0) AS difference,
       regexp_matches(k.dtype, '(?i)^(u?int[48]|float8|f8|i8|u8)') AS quantised
FROM draft_params d
JOIN params p ON p.side = 'draft' AND p.name = d.name
JOIN checkpoint_keys k ON k.key = p.checkpoint_keys[1]
WHERE len(p.checkpoint_keys) = 1 AND d.missing = 0 AND d.shared_with IS NULL AND k.elements = p.elements
    AND coalesce(p.epoch, 0) = 0 AND p.checksum IS NOT DISTINCT FROM coalesce(p.loaded_checksum, p.checksum)
    AND isfinite(p.rms) AND isfinite(k.rms)
ORDER BY name
