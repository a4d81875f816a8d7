-- title: The draft's parameters, with what is missing in each
-- needs: params, fact
-- about: Left out: buffers that modules compute themselves (rotary tables, scales, counters).
-- column missing: elements that no checkpoint tensor wrote; 0 for a parameter that uses the target's storage. Rows
--        that a head or embedding was padded with, to a multiple of 64, are not missing, nor are embeddings, and the
--        head of an EAGLE-1 draft, of a server that ended before the engine shares the target's.
-- column harmless_value: it holds what a norm or bias starts with (all ones, or all zeros in a bias)
-- column width: size of the last dimension
SELECT
    name, shape, elements, elements_loaded, checkpoint_keys, shared_with, rms, constant, nan_count, module_type,
    CASE WHEN shared_with IS NOT NULL OR (phase = 'loaded' AND (name LIKE '%embed_tokens.weight'
             OR (name LIKE '%lm_head.weight' AND fact('draft.family') = 'eagle'))) THEN 0
         WHEN len(shape) = 2 AND regexp_matches(coalesce(module_type, ''), '(?i)lmhead|vocab|embedding')
             AND elements_loaded > 0 AND shape[1] % 64 = 0 AND elements - elements_loaded < 64 * shape[2] THEN 0
         ELSE elements - elements_loaded END AS missing,
    coalesce(len(shape) <= 1 AND (constant = 1 OR (constant = 0 AND name LIKE '%bias')), FALSE) AS harmless_value,
    shape[-1] AS width
FROM params
WHERE side = 'draft' AND elements > 0
    AND NOT regexp_matches(coalesce(module_type, ''), '(?i)rotary|rope|logitsprocessor|sampler')
    AND NOT regexp_matches(name, '(cos_sin_cache|inv_freq|rotary_emb\..*|(^|\.)[kqv]_scale|_step_count)$')
