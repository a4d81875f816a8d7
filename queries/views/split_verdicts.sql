-- title: Rows of a check that compares kinds of rounds
-- kind: macro
-- needs: split_findings, round_splits
-- about: split_verdicts(splits, known_by, about, none, unseen, share, strict, live, least_rounds, least_prompts). `known_by`
--        are the splits whose presence shows that it was recorded what rounds are told apart by; `none` says that
--        there was nothing to compare, `unseen` that it was not recorded.
(splits, known_by, about, none, unseen, share, strict, live, least_rounds, least_prompts) AS TABLE
WITH f AS (FROM split_findings(splits, share, strict, live, least_rounds, least_prompts)),
known AS (SELECT count(*) > 0 AS known FROM round_splits WHERE list_contains(known_by, split)),
whole AS (
    SELECT count(*) AS kinds, count(*) FILTER (WHERE state = 'fails') AS failing,
        arg_min(text, (ratio, split, part)) FILTER (WHERE state <> 'few') AS judged,
        arg_min(text, (ratio, split, part)) FILTER (WHERE state = 'few') AS too_few
    FROM f
)
SELECT 'alarm' AS status, kind AS subject, text AS reason, evidence FROM f WHERE state = 'fails'
UNION ALL
SELECT
    CASE WHEN judged IS NOT NULL THEN 'ok' WHEN too_few IS NOT NULL THEN 'unknown' WHEN known THEN 'not_applicable'
         ELSE 'unknown' END,
    about,
    CASE WHEN judged IS NOT NULL THEN judged
         WHEN too_few IS NOT NULL
             THEN concat('too few to compare: ', too_few, '; send more requests: ', least_rounds, ' rounds of ',
                         least_prompts, ' different prompts of each kind are the least')
         WHEN known THEN none
         ELSE concat(unseen, ': send requests to the traced server, with EAGLETRACE_LEVEL=tokens') END,
    json_object('kinds', kinds)
FROM whole, known
WHERE failing = 0
