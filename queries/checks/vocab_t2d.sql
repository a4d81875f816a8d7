-- id: vocab.t2d
-- title: t2d marks the tokens that d2t maps to
-- severity: warning
-- certainty: possible
-- requires: contract:t2d.in_checkpoint, contract:t2d.agreement
-- causes: vocab.d2t_mismatch
-- about: SGLang does not read t2d, so a wrong one costs nothing; but then one of the two is wrong.
WITH f AS (SELECT fact('t2d.agreement') AS value, fact('t2d.in_checkpoint') = 'true' AS in_file),
g AS (
    SELECT in_file, value, CASE WHEN json_type(value) = 'OBJECT'
        THEN coalesce(value ->> '$.agreement', value ->> '$.share')::DOUBLE ELSE try_cast(value AS DOUBLE) END AS share,
        (value ->> '$.marked')::BIGINT AS marked, (value ->> '$.map_length')::BIGINT AS mapped
    FROM f
)
SELECT
    CASE WHEN NOT in_file OR share IS NULL THEN 'not_applicable'
         WHEN share < 1 OR marked <> mapped THEN 'alarm' ELSE 'ok' END AS status,
    't2d' AS subject,
    CASE WHEN NOT in_file THEN 'the checkpoint has no t2d'
         WHEN share IS NULL THEN 'no map is served that t2d could agree with'
         WHEN share < 1 OR marked <> mapped
             THEN concat('t2d marks ', round(100 * share, 1), ' % of the tokens that the served map holds',
                         CASE WHEN marked <> mapped THEN concat(', and marks ', marked, ' tokens where the map has ',
                                                                mapped) END)
         ELSE 't2d and the served map agree' END AS reason,
    json_object('share', share, 'marked', marked, 'map_length', mapped) AS evidence
FROM g
