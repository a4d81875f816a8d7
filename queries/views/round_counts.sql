-- title: Counted rounds of user requests, summed by request
-- needs: rounds
-- column rounds: rounds
-- column accepted: correct drafts, of rounds whose verdict was recorded
-- column fc_known: rounds in which it was seen whether fc ran
-- column fc_not_applied: rounds in which it did not run
-- column engine_known: rounds with the engine's own number
-- column engine_accepted: sum of the engine's own numbers
SELECT
    host, pid, request_seq,
    count(*) AS rounds,
    sum(accepted)::BIGINT AS accepted,
    count(fc_applied) AS fc_known,
    count(*) FILTER (WHERE NOT fc_applied) AS fc_not_applied,
    count(engine_reported_accepted) AS engine_known,
    sum(engine_reported_accepted)::BIGINT AS engine_accepted
FROM rounds
GROUP BY ALL
