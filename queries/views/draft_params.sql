-- title: The draft's parameters, with what is missing in each
-- needs: params, fact
-- about: Left out: buffers that modules compute themselves (rotary tables, scales, counters), and the norm of the
--        embedding in later layers of an EAGLE-3 draft, which SGLang's class has there and never uses.
-- column missing: elements that no checkpoint tensor wrote; 0 for a parameter that uses the target's storage. Rows
--        that a head or embedding was padded with, to a multiple of 64, are not missing, nor are embeddings, and the
--        head of an EAGLE-1 draft or of multi-token prediction, of a server that ended before the engine shares the
--        target's.
-- column harmless_value: it holds what a norm or bias starts with (all ones, or all zeros in a bias)
-- column initial_bias: a bias of a fusion layer that no tensor wrote and that holds values as small as those that
--        torch.nn.Linear starts with: below one by the root of the layer's inputs
-- column width: size of the last dimension
SELECT
    name, shape, elements, elements_loaded, checkpoint_keys, shared_with, rms, constant, nan_count, module_type,
    CASE WHEN shared_with IS NOT NULL OR (phase = 'loaded' AND (name LIKE '%embed_tokens.weight'
             OR (name LIKE '%lm_head.weight' AND fact('draft.family') IN ('eagle', 'nextn')))) THEN 0
         WHEN len(shape) = 2 AND regexp_matches(coalesce(module_type, ''), '(?i)lmhead|vocab|embedding')
             AND elements_loaded > 0 AND shape[1] % 64 = 0 AND elements - elements_loaded < 64 * shape[2] THEN 0
         ELSE elements - elements_loaded END AS missing,
    coalesce(len(shape) <= 1 AND (constant = 1 OR (constant = 0 AND name LIKE '%bias')), FALSE) AS harmless_value,
    coalesce(name LIKE '%fc.bias' AND elements_loaded = 0
        AND rms <= 1 / sqrt((SELECT max(w.shape[-1]) FROM params w
                             WHERE w.side = 'draft' AND w.name = replace(p.name, 'fc.bias', 'fc.weight'))),
        FALSE) AS initial_bias,
    shape[-1] AS width
FROM params p
WHERE side = 'draft' AND elements > 0
    AND NOT regexp_matches(coalesce(module_type, ''), '(?i)rotary|rope|logitsprocessor|sampler')
    AND NOT regexp_matches(name, '(cos_sin_cache|inv_freq|rotary_emb\..*|(^|\.)[kqv]_scale|_step_count)$')
    AND name NOT IN (SELECT replace(h.name, 'hidden_norm', 'input_layernorm') FROM params h
                     WHERE regexp_matches(h.name, '(^|\.)layers\.[1-9]\d*\.hidden_norm\.weight$'))
