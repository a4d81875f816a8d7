-- title: Kinds of rounds of some splits, and whether the first draft fails there and nowhere else
-- kind: macro
-- needs: round_splits, round_split_pairs
-- about: split_findings(['cached'], share, strict, live, least_rounds, least_prompts). A kind fails where its rate lies
--        below `share` of the others', both intervals are apart, and the others' lies above `live`; where it is strict,
--        the upper end of its interval lies below `share` of the others' lower end. Of two failing kinds that share
--        rounds one is explained by the other where without that it does not fail any more, or is not there, and that
--        one without it fails, or is not there.
--        Where most rounds of a kind are of one prompt, they are too few to say anything of the kind.
-- column state: fails, explained, few or fine
-- column text: both rates in words
-- column ratio: rate over that of the others
(splits, share, strict, live, least_rounds, least_prompts) AS TABLE
WITH s AS (
    SELECT *, rounds < least_rounds OR prompts < least_prompts OR 2 * most_rounds > rounds OR others_rounds < least_rounds
            OR others_prompts < least_prompts AS few,
        coalesce(high < others_low AND others_low > live
                 AND CASE WHEN strict THEN high < share * others_low ELSE rate < share * others_rate END, FALSE) AS low
    FROM round_splits WHERE part <> 'false' AND others_rate IS NOT NULL
),
f AS (SELECT *, low AND NOT few AS fails FROM s),
apart AS (
    SELECT *, coalesce((CASE WHEN rounds >= least_rounds THEN rate < share * neither_rate END)::INT, 0.5) AS still,
        coalesce((CASE WHEN by_rounds >= least_rounds THEN by_rate < share * neither_rate END)::INT, 0.5) AS by_still
    FROM round_split_pairs
),
explained AS (
    SELECT p.split, p.part, min(q.kind) AS by_kind
    FROM apart p
    JOIN f a ON a.split = p.split AND a.part = p.part AND a.fails
    JOIN f q ON q.split = p.by_split AND q.part = p.by_part AND q.fails
    WHERE p.by_still > p.still
    GROUP BY ALL
)
SELECT f.split, f.part, f.kind,
    CASE WHEN e.split IS NOT NULL THEN 'explained' WHEN fails THEN 'fails' WHEN few THEN 'few' ELSE 'fine' END AS state,
    concat('the first draft was accepted in ', accepted, ' of ', rounds, ' rounds ', f.kind, ' (',
           round(100 * rate)::INT, ' %), in ', others_accepted, ' of ', others_rounds, ' other rounds (',
           round(100 * others_rate)::INT, ' %)', CASE WHEN e.split IS NOT NULL THEN concat(': rounds ', e.by_kind, ' explain it') END)
        AS text,
    rate / others_rate AS ratio,
    json_object('split', f.split, 'part', f.part, 'prompts', prompts, 'rounds', rounds, 'first_accepted', accepted,
                'others_prompts', others_prompts, 'others_rounds', others_rounds,
                'others_first_accepted', others_accepted,
                'high', high, 'others_low', others_low) AS evidence
FROM f LEFT JOIN explained e USING (split, part)
WHERE list_contains(splits, f.split)
