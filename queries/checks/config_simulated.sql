-- id: config.simulated
-- title: Acceptance is real
-- severity: critical
-- certainty: sure
-- requires: contract:env.simulated_acceptance
-- causes: config.simulated_acceptance
WITH f AS (SELECT fact('env.simulated_acceptance') AS value)
SELECT
    CASE WHEN coalesce(try_cast(value AS DOUBLE), 0) > 0 THEN 'alarm' ELSE 'ok' END AS status,
    'env.simulated_acceptance' AS subject,
    CASE WHEN coalesce(try_cast(value AS DOUBLE), 0) > 0
         THEN 'SGLANG_SIMULATE_ACC_LEN=' || value || ' replaces the verdicts: accepted tokens are made up'
         ELSE 'no setting fakes acceptance' END AS reason,
    json_object('value', value) AS evidence
FROM f
