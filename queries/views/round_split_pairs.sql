-- title: What is left of a kind of round without another kind that also fails
-- needs: round_kinds, round_splits
-- about: Requests with cached tokens may all sit in the last rows of their batches. Where cached rounds in other rows
--        are accepted, and uncached ones in the last rows are not, it is the row. Only kinds with less than 0.6 of the
--        rate of the other rounds are looked at.
-- column by_split, by_part: the other kind
-- column rounds, rate: rounds of this kind and not of the other, and their rate
-- column by_rounds, by_rate: of the other kind and not of this one
-- column neither_rate: rate of rounds of neither
WITH low AS (
    SELECT split, part FROM round_splits WHERE part <> 'false' AND rate < 0.6 * others_rate
),
cells AS (
    SELECT row_number() OVER () AS cell, * FROM (
        SELECT * EXCLUDE (prompt, rounds, accepted), sum(rounds) AS n, sum(accepted) AS a
        FROM round_kinds GROUP BY ALL)
),
in_part AS (
    SELECT c.cell, l.split, l.part, c.n, c.a,
        coalesce(CASE l.split
            WHEN 'cached' THEN cached::VARCHAR WHEN 'chunked' THEN chunked::VARCHAR
            WHEN 'near_edge' THEN near_edge::VARCHAR WHEN 'row' THEN row::VARCHAR
            WHEN 'before_last_row' THEN before_last_row::VARCHAR
            WHEN 'eager_batch_size' THEN eager_batch_size::VARCHAR
            WHEN 'graph_batch_size' THEN graph_batch_size::VARCHAR
            WHEN 'first_round' THEN first_round::VARCHAR WHEN 'graph' THEN graph::VARCHAR
            WHEN 'image' THEN image::VARCHAR WHEN 'grammar' THEN grammar::VARCHAR
            WHEN 'late' THEN late::VARCHAR
            ELSE sampled::VARCHAR END = l.part, FALSE) AS inside
    FROM cells c, low l
)
SELECT
    p.split, p.part, q.split AS by_split, q.part AS by_part,
    sum(p.n) FILTER (WHERE p.inside AND NOT q.inside)::BIGINT AS rounds,
    sum(p.a) FILTER (WHERE p.inside AND NOT q.inside) / sum(p.n) FILTER (WHERE p.inside AND NOT q.inside) AS rate,
    sum(p.n) FILTER (WHERE q.inside AND NOT p.inside)::BIGINT AS by_rounds,
    sum(p.a) FILTER (WHERE q.inside AND NOT p.inside) / sum(p.n) FILTER (WHERE q.inside AND NOT p.inside) AS by_rate,
    sum(p.a) FILTER (WHERE NOT p.inside AND NOT q.inside)
        / sum(p.n) FILTER (WHERE NOT p.inside AND NOT q.inside) AS neither_rate
FROM in_part p JOIN in_part q ON q.cell = p.cell AND q.split <> p.split
GROUP BY ALL
