-- title: Quantisation scales and zero points in the draft's checkpoint
-- needs: checkpoint_keys
-- column weight: the tensor that the scale belongs to, by its name; NULL if the file has none
-- column neutral: whether its tensor is the same without it: scales of one, zero points of zero
SELECT s.key, s.fate, s.dtype, any_value(w.key) AS weight, any_value(w.dtype) AS weight_dtype,
    CASE WHEN regexp_matches(s.key, '_zero_point$') THEN s.rms = 0
         WHEN regexp_matches(s.key, 'scale') THEN round(s.rms, 5) = 1 ELSE FALSE END AS neutral
FROM checkpoint_keys s
LEFT JOIN checkpoint_keys w ON w.key <> s.key
    AND starts_with(w.key, regexp_extract(s.key, '^(.*)\.[^.]*$', 1) || '.')
    AND regexp_matches(w.key, '\.(weight|qweight|weight_packed|weight_q)$')
WHERE regexp_matches(s.key, '(_scale|_scale_inv|\.scales|_scale_2|_global_scale|\.qzeros|_zero_point|\.g_idx)$')
GROUP BY s.key, s.fate, s.dtype, s.rms
ORDER BY s.key
