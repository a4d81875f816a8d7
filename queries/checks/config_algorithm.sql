-- id: config.algorithm
-- title: The speculative algorithm fits the draft
-- severity: critical
-- certainty: sure
-- requires: contract:server.speculative_algorithm
-- causes: config.algorithm_mismatch
-- references: sglang#21272
WITH f AS (
    SELECT upper(fact('server.speculative_algorithm')) AS actual,
           upper(expected('server.speculative_algorithm')) AS expected,
           fact('draft.architecture') AS draft
)
SELECT
    CASE WHEN expected IS NULL THEN 'not_applicable'
         WHEN actual = expected THEN 'ok'
         ELSE 'alarm' END AS status,
    'server.speculative_algorithm' AS subject,
    CASE WHEN expected IS NULL THEN 'the draft does not ask for an algorithm'
         WHEN actual = expected THEN 'the draft is served as ' || actual || ', as its layout asks'
         ELSE concat('the server runs ', coalesce(actual, 'no speculative algorithm'), '; the draft',
                     ' (', draft, ')', ' has the layout of ', expected) END AS reason,
    json_object('algorithm', actual, 'expected', expected, 'draft', draft) AS evidence
FROM f
