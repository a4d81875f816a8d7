-- title: Acceptance by round after the prefill
-- needs: rounds, round_verdicts, round_depths
-- column request_round: 1 for the first round after a prefill or retraction; 16 holds all later ones
-- column first_reached: rounds with a node at depth 1
-- column first_rate: share of those in which it was accepted
SELECT
    least(r.request_round, 16) AS request_round,
    count(*) AS rounds,
    sum(v.accepted)::BIGINT AS accepted,
    1 + sum(v.accepted) / count(*) AS accept_length,
    stddev_samp(v.accepted) / sqrt(count(*)) AS accept_length_stderr,
    count(*) FILTER (WHERE d.reached) AS first_reached,
    count(*) FILTER (WHERE d.accepted) / nullif(count(*) FILTER (WHERE d.reached), 0) AS first_rate
FROM rounds r
JOIN round_verdicts v USING (host, pid, round, request_seq)
LEFT JOIN round_depths d ON d.host = r.host AND d.pid = r.pid AND d.round = r.round
    AND d.request_seq = r.request_seq AND d.depth = 1
GROUP BY 1
ORDER BY 1
