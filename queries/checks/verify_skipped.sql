-- id: verify.skipped
-- title: Generated tokens went through verification
-- severity: critical
-- certainty: sure
-- requires: requests, contract:server.speculative_algorithm
-- causes: verify.skipped
-- references: vllm#52107
-- param min_rounds: int = 30, tokens below which nothing is said
WITH f AS (
    SELECT coalesce(sum(output_tokens), 0) AS tokens, sum(engine_rounds) AS engine_rounds,
           (SELECT coalesce(sum(rounds), 0)::BIGINT FROM round_counts) + (SELECT coalesce(sum(rounds), 0) FROM totals) AS rounds,
           fact('server.speculative_algorithm') AS algorithm
    FROM requests WHERE end_time_unix_nano IS NOT NULL AND output_tokens > 1
)
SELECT
    CASE WHEN algorithm IS NULL THEN 'not_applicable' WHEN rounds > 0 OR engine_rounds > 0 THEN 'ok'
         WHEN engine_rounds = 0 AND tokens >= $min_rounds THEN 'alarm' ELSE 'unknown' END AS status,
    'verification' AS subject,
    CASE WHEN algorithm IS NULL THEN 'the server does not speculate'
         WHEN rounds > 0 OR engine_rounds > 0 THEN 'verify rounds ran'
         WHEN engine_rounds = 0 AND tokens >= $min_rounds
             THEN concat(tokens, ' tokens were generated, and no verify round ran')
         ELSE concat('too few tokens of finished requests, or no count of verify rounds by the engine:',
                    ' send requests') END AS reason,
    json_object('tokens', tokens, 'rounds', rounds, 'engine_rounds', engine_rounds) AS evidence
FROM f
