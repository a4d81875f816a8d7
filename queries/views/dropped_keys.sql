-- title: Checkpoint tensors that landed nowhere, and the unfilled parameter whose shape each fits
-- needs: checkpoint_keys, draft_params
-- about: A tensor fits a parameter that misses at least as many elements and has as many dimensions, the same
--        width and no fewer rows (a fused parameter has more); with tensor parallelism a rank holds a part. A tensor of
--        one expert fits the parameter of all, and the second projection of a block one whose rows were widened.
-- column fits: name of the parameter that it fits best: most parts of the name in common, garbage before ones; or NULL
-- column fits_any: names of all parameters that it fits
-- column fits_harmless: whether all parameters that it fits hold ones
WITH ranks AS (SELECT coalesce(max(tp_rank), 0) + 1 AS n FROM all_ranks.params),
fitting AS (
    SELECT k.key, list(p.name) AS names, bool_and(p.harmless_value) AS harmless,
        arg_min(p.name, (-len(list_intersect(string_split(k.key, '.'), string_split(p.name, '.'))),
                         p.harmless_value::INT, p.missing)) AS fits
    FROM checkpoint_keys k, draft_params p, ranks
    WHERE k.fate = 'dropped' AND p.missing > 0
        AND (len(k.shape) = len(p.shape)
             OR (len(p.shape) = 3 AND len(k.shape) = 2 AND k.key LIKE '%experts.%' AND p.name LIKE '%experts.w%'))
        AND k.elements <= p.missing * ranks.n
        AND (p.width = k.shape[-1] OR p.width * ranks.n = k.shape[-1]
             OR (p.width > k.shape[-1] AND k.key LIKE '%down_proj.weight'
                 AND regexp_matches(p.name, '(w2_weight|down_proj\.weight)$')))
        AND (len(k.shape) < 2 OR k.shape[-2] <= p.shape[-2] * ranks.n)
    GROUP BY k.key
)
SELECT DISTINCT k.key, k.shape, k.dtype, k.elements, k.rms, f.fits, f.names AS fits_any, f.harmless AS fits_harmless
FROM checkpoint_keys k LEFT JOIN fitting f USING (key)
WHERE k.fate = 'dropped'
ORDER BY k.key
