-- id: metric.engine_counts
-- title: The engine's own counts agree with the rounds recorded
-- severity: warning
-- certainty: harmless
-- requires: requests, rounds
-- causes: metric.artifact
-- about: Finished requests only. Sampled or dropped rounds are not compared.
-- param count_tolerance: float = 0.01, relative difference that the end of a recording explains
-- references: sglang#11572, vllm#16035
WITH f AS (
    SELECT count(*) AS n, sum(o.rounds) AS rounds, sum(o.accepted) AS accepted,
           sum(q.engine_rounds) AS engine_rounds, sum(q.engine_accepted) AS engine_accepted
    FROM requests q JOIN round_counts o USING (host, pid, request_seq)
    WHERE q.end_time_unix_nano IS NOT NULL AND q.engine_rounds IS NOT NULL
),
g AS (
    SELECT *, EXISTS (FROM dropped_rows) AS dropped,
        abs(rounds - engine_rounds) > $count_tolerance * rounds
            OR abs(accepted - engine_accepted) > greatest($count_tolerance * accepted, 1) AS differ
    FROM f
)
SELECT
    CASE WHEN n = 0 OR dropped THEN 'unknown' WHEN differ THEN 'alarm' ELSE 'ok' END AS status,
    'spec_verify_ct' AS subject,
    CASE WHEN n = 0 THEN 'no finished request has the engine''s counts beside ours'
         WHEN dropped THEN 'rows were dropped, so that the counts cannot be compared'
         WHEN differ THEN concat('the engine counts ', engine_rounds, ' rounds and ', engine_accepted, ' correct',
                                 ' drafts, the verdicts recorded give ', rounds, ' and ', accepted)
         ELSE concat('the engine counts ', engine_rounds, ' rounds and ', coalesce(engine_accepted::VARCHAR, 'no'),
                     ' correct drafts, as recorded') END AS reason,
    json_object('requests', n, 'rounds', rounds, 'engine_rounds', engine_rounds, 'accepted', accepted,
                'engine_accepted', engine_accepted) AS evidence
FROM g
