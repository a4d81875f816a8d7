-- id: grammar.masked
-- title: Rejected drafts are not those that a grammar forbids
-- severity: warning
-- certainty: sure
-- requires: verifies
-- causes: grammar.masked
-- param grammar_share: float = 0.5, share of rejected first drafts under a grammar that it masks
-- param split_rounds: int = 10, rejected first drafts below which nothing is said
-- references: vllm#14702
WITH c AS (
    SELECT count(*) AS known, count(*) FILTER (WHERE NOT accepted) AS rejected,
           count(*) FILTER (WHERE NOT accepted AND grammar_masked) AS masked
    FROM verifies WHERE depth = 1 AND reached AND grammar_masked IS NOT NULL
),
v AS (SELECT *, wilson(masked, rejected, -1) AS low FROM c)
SELECT
    CASE WHEN known = 0 THEN 'not_applicable' WHEN rejected < $split_rounds THEN 'ok'
         WHEN low > $grammar_share THEN 'alarm' ELSE 'ok' END AS status,
    'grammar' AS subject,
    CASE WHEN known = 0 THEN 'no grammar was seen at a draft'
         ELSE concat('a grammar masks ', masked, ' of ', rejected, ' rejected first drafts, of ', known,
                     ' drafted under one') END AS reason,
    json_object('drafts', known, 'rejected', rejected, 'masked', masked, 'low', low) AS evidence
FROM v
