-- title: Acceptance of the first draft in each kind of round against all other rounds
-- needs: round_kinds, wilson_of, normal_quantile
-- about: Rounds of one prompt are alike, so that they count for fewer: counts are divided by the design effect, the
--        variance between prompts over that of independent rounds (Rao and Scott). A kind of round that fails for most
--        prompts and not for all varies more than prompts do: for it the others' effect counts if that is smaller.
--        All parts of one split are looked at together, and their intervals hold together.
-- column split: what rounds are told apart by
-- column part: the kind of round
-- column kind: the same in words, after "rounds"
-- column parts: kinds of this split; for the moment, about as many as there could be
-- column z: standard errors of the intervals, for as many parts
-- column prompts: different prompts with such a round; others_prompts: with another
-- column most_rounds: such rounds of the prompt that has most of them
-- column high: upper end of the interval of the rate of this kind
-- column others_low: lower end of the interval of the rate of all other rounds
WITH long AS (
    SELECT s.split, s.part, k.prompt, sum(k.rounds) AS n, sum(k.accepted) AS a
    FROM round_kinds k, unnest([
        {'split': 'cached', 'part': cached::VARCHAR}, {'split': 'chunked', 'part': chunked::VARCHAR},
        {'split': 'near_edge', 'part': near_edge::VARCHAR}, {'split': 'row', 'part': row::VARCHAR},
        {'split': 'before_last_row', 'part': before_last_row::VARCHAR},
        {'split': 'eager_batch_size', 'part': eager_batch_size::VARCHAR},
        {'split': 'graph_batch_size', 'part': graph_batch_size::VARCHAR},
        {'split': 'first_round', 'part': first_round::VARCHAR}, {'split': 'graph', 'part': graph::VARCHAR},
        {'split': 'image', 'part': image::VARCHAR}, {'split': 'grammar', 'part': grammar::VARCHAR},
        {'split': 'sampled', 'part': sampled::VARCHAR},
        {'split': 'late', 'part': late::VARCHAR}]) AS u(s)
    WHERE s.part IS NOT NULL
    GROUP BY ALL
),
whole AS (
    SELECT *, sum(n) OVER prompts - n AS other_n, sum(a) OVER prompts - a AS other_a FROM long
    WINDOW prompts AS (PARTITION BY split, prompt)
),
sums AS (
    SELECT split, CASE split WHEN 'late' THEN 64 ELSE count(DISTINCT part) END AS parts, count(DISTINCT prompt) AS prompts,
           sum(n) AS n, sum(a) AS a
    FROM whole GROUP BY split
),
squares AS (
    SELECT split, sum(n * n) AS nn, sum(n * a) AS na, sum(a * a) AS aa
    FROM (SELECT split, prompt, sum(n) AS n, sum(a) AS a FROM long GROUP BY ALL) GROUP BY split
),
sides AS (
    SELECT w.split, w.part, any_value(s.parts) AS parts,
        count(*) AS m, max(w.n) AS most, sum(w.n) AS n, sum(w.a) AS a, sum(w.n * w.n) AS nn, sum(w.n * w.a) AS na, sum(w.a * w.a) AS aa,
        any_value(s.prompts) - count(*) FILTER (WHERE w.other_n = 0) AS others_m,
        any_value(s.n) - sum(w.n) AS others_n, any_value(s.a) - sum(w.a) AS others_a,
        any_value(q.nn) - sum((w.n + w.other_n) ** 2 - w.other_n ** 2) AS others_nn,
        any_value(q.na) - sum((w.n + w.other_n) * (w.a + w.other_a) - w.other_n * w.other_a) AS others_na,
        any_value(q.aa) - sum((w.a + w.other_a) ** 2 - w.other_a ** 2) AS others_aa
    FROM whole w JOIN sums s USING (split) JOIN squares q USING (split)
    GROUP BY w.split, w.part
),
own_effects AS (
    SELECT *, normal_quantile(0.025 / parts) AS z,
        greatest(1, coalesce(m / nullif(m - 1, 0) * (aa - 2 * a / n * na + (a / n) ** 2 * nn)
                             / nullif(a * (1 - a / n), 0), 1)) AS own_effect,
        greatest(1, coalesce(others_m / nullif(others_m - 1, 0)
                             * (others_aa - 2 * others_a / nullif(others_n, 0) * others_na
                                + (others_a / nullif(others_n, 0)) ** 2 * others_nn)
                             / nullif(others_a * (1 - others_a / nullif(others_n, 0)), 0), 1)) AS others_effect
    FROM sides
),
effects AS (SELECT *, least(own_effect, others_effect) AS effect FROM own_effects)
SELECT
    split, part,
    CASE split
        WHEN 'cached' THEN 'of requests with cached tokens'
        WHEN 'chunked' THEN 'of prompts that were computed in chunks'
        WHEN 'near_edge' THEN 'just behind a cached prefix or a chunk'
        WHEN 'row' THEN concat('in row ', part, ' of a batch')
        WHEN 'before_last_row' THEN 'in a row before the last of a batch'
        WHEN 'eager_batch_size' THEN concat('in batches of ', part)
        WHEN 'graph_batch_size' THEN concat('in batches of ', part, ' from a captured graph')
        WHEN 'first_round' THEN 'right after a prefill'
        WHEN 'graph' THEN 'from a captured graph'
        WHEN 'image' THEN 'of requests with images'
        WHEN 'grammar' THEN 'of requests with a grammar'
        WHEN 'late' THEN 'from a moment on'
        ELSE 'of requests with a temperature above 0' END AS kind,
    parts, z, m AS prompts, n::BIGINT AS rounds, most::BIGINT AS most_rounds, a::BIGINT AS accepted, a / n AS rate,
    wilson_of(a / effect, n / effect, 1, z) AS high, effect,
    others_m AS others_prompts, others_n::BIGINT AS others_rounds, others_a::BIGINT AS others_accepted,
    others_a / nullif(others_n, 0) AS others_rate,
    wilson_of(others_a / others_effect, others_n / others_effect, -1, z) AS others_low, others_effect
FROM effects
ORDER BY split, part
