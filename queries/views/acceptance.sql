-- title: Acceptance of the whole run, one row
-- needs: round_verdicts, rounds, requests
-- column rounds: counted rounds of user requests whose verdicts were recorded
-- column accept_length: 1 + accepted / rounds
-- column accept_length_stderr: standard error over rounds
-- column engine_reported_accept_length: as the engine counts: output tokens / verify rounds, of finished requests
SELECT
    count(*) AS rounds,
    coalesce(sum(v.drafted), 0)::BIGINT AS drafted,
    coalesce(sum(v.accepted), 0)::BIGINT AS accepted,
    1 + sum(v.accepted) / nullif(count(*), 0) AS accept_length,
    stddev_samp(v.accepted) / sqrt(nullif(count(*), 0)) AS accept_length_stderr,
    (SELECT sum(output_tokens) / nullif(sum(engine_rounds), 0)
     FROM requests WHERE engine_rounds > 0 AND end_time_unix_nano IS NOT NULL) AS engine_reported_accept_length
FROM round_verdicts v
