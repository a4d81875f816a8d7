-- id: vocab.d2t_mismatch
-- title: d2t maps each draft id to a token of its own
-- severity: critical
-- certainty: sure
-- requires: contract:d2t.in_checkpoint, contract:d2t.as_offsets
-- causes: vocab.d2t_mismatch
-- about: Trainers number the kept tokens in ascending order. A map that points outside the vocabulary, at a token
--        twice, or out of order at tokens that t2d does not mark, was damaged.
WITH f AS (
    SELECT fact('d2t.as_offsets') AS m, fact('target.vocab_size') AS vocabulary
),
w AS (
    SELECT *, (m ->> '$.t2d_agreement')::DOUBLE AS agreement,
        (m ->> '$.in_range') = 'false' AS outside, (m ->> '$.unique') = 'false' AS twice,
        (m ->> '$.monotone') = 'false' AS disordered
    FROM f
),
x AS (SELECT *, coalesce(outside OR twice OR (disordered AND agreement < 1), FALSE) AS wrong FROM w)
SELECT
    CASE WHEN m IS NULL THEN 'not_applicable' WHEN wrong THEN 'alarm' ELSE 'ok' END AS status,
    'd2t' AS subject,
    CASE WHEN m IS NULL THEN 'the checkpoint has no d2t'
         WHEN wrong THEN concat('the mapped ids are wrong in part: ', array_to_string(list_filter([
             CASE WHEN outside THEN concat('they run from ', m ->> '$.min', ' to ', m ->> '$.max',
                                           ', outside the vocabulary of ' || vocabulary) END,
             CASE WHEN twice THEN 'several draft ids have the same token' END,
             CASE WHEN disordered THEN 'they are not in ascending order' END,
             CASE WHEN agreement < 1 THEN concat('t2d marks only ', round(100 * agreement, 1), ' % of them') END
             ], lambda part: part IS NOT NULL), '; '))
         ELSE 'the mapped ids are in the vocabulary, each once' END AS reason,
    json_object('as_offsets', m::JSON, 'vocabulary', vocabulary) AS evidence
FROM x
