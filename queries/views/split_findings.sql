-- title: Kinds of rounds of some splits, and whether the first draft fails there and nowhere else
-- kind: macro
-- needs: round_splits, round_split_pairs, wilson_of
-- about: split_findings(['cached'], share, strict, live, least_rounds, least_requests). A kind fails where its rate lies
--        below `share` of the others', both intervals are apart, and the others' lies above `live`; where it is strict,
--        the upper end of its interval lies below `share` of the others' lower end. It is explained by another failing
--        kind where it does not fail without that, and that one does fail without it.
-- column state: fails, explained, few or fine
-- column text: both rates in words
-- column ratio: rate over that of the others
(splits, share, strict, live, least_rounds, least_requests) AS TABLE
WITH s AS (
    SELECT *, rounds < least_rounds OR requests < least_requests OR others_rounds < least_rounds
            OR others_requests < least_requests AS few,
        coalesce(high < others_low AND others_low > live
                 AND CASE WHEN strict THEN high < share * others_low ELSE rate < share * others_rate END, FALSE) AS low
    FROM round_splits WHERE part <> 'false' AND others_rounds > 0
),
f AS (SELECT *, low AND NOT few AS fails FROM s),
explained AS (
    SELECT DISTINCT p.split, p.part, any_value(q.kind) AS by_kind
    FROM round_split_pairs p
    JOIN f a ON a.split = p.split AND a.part = p.part AND a.fails
    JOIN f q ON q.split = p.by_split AND q.part = p.by_part AND q.fails
    WHERE NOT coalesce(wilson_of(p.accepted / a.effect, p.rounds / a.effect, 1, a.z)
                       < wilson_of(p.neither_accepted, p.neither_rounds, -1, a.z), FALSE)
        AND coalesce(wilson_of(p.by_accepted / q.effect, p.by_rounds / q.effect, 1, q.z)
                     < wilson_of(p.neither_accepted, p.neither_rounds, -1, q.z), FALSE)
    GROUP BY ALL
)
SELECT f.split, f.part, f.kind,
    CASE WHEN e.split IS NOT NULL THEN 'explained' WHEN fails THEN 'fails' WHEN few THEN 'few' ELSE 'fine' END AS state,
    concat('the first draft was accepted in ', accepted, ' of ', rounds, ' rounds ', f.kind, ' (',
           round(100 * rate)::INT, ' %), in ', others_accepted, ' of ', others_rounds, ' other rounds (',
           round(100 * others_rate)::INT, ' %)', CASE WHEN e.split IS NOT NULL THEN concat(': rounds ', e.by_kind, ' explain it') END)
        AS text,
    rate / others_rate AS ratio,
    json_object('split', f.split, 'part', f.part, 'requests', requests, 'rounds', rounds, 'first_accepted', accepted,
                'others_requests', others_requests, 'others_rounds', others_rounds,
                'others_first_accepted', others_accepted,
                'high', high, 'others_low', others_low) AS evidence
FROM f LEFT JOIN explained e USING (split, part)
WHERE list_contains(splits, f.split)
