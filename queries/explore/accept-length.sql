-- title: Accept length of the run, from the verdicts, from the totals, and as the engine counts it
-- needs: totals
SELECT
    'verdicts' AS counted_from, rounds, drafted, accepted, accept_length
FROM acceptance
UNION ALL
SELECT 'totals', rounds, drafted, accepted, accept_length FROM totals_acceptance
UNION ALL
SELECT 'engine: output tokens / verify rounds', sum(engine_rounds)::BIGINT, NULL, sum(engine_accepted)::BIGINT,
       sum(output_tokens) / nullif(sum(engine_rounds), 0)
FROM requests WHERE engine_rounds > 0
