-- title: Acceptance at each depth
-- needs: round_depths, round_verdicts, wilson
-- column reached: rounds with depth - 1 correct drafts and a node at this depth under them
-- column accepted: rounds in which one of those nodes was accepted
-- column rate: accepted / reached, the conditional rate
-- column unconditional_rate: accepted / all counted rounds
SELECT
    depth,
    count(*) FILTER (WHERE reached) AS reached,
    count(*) FILTER (WHERE accepted) AS accepted,
    count(*) FILTER (WHERE accepted) / nullif(count(*) FILTER (WHERE reached), 0) AS rate,
    wilson(count(*) FILTER (WHERE accepted), count(*) FILTER (WHERE reached), -1) AS rate_ci_low,
    wilson(count(*) FILTER (WHERE accepted), count(*) FILTER (WHERE reached), 1) AS rate_ci_high,
    count(*) FILTER (WHERE accepted) / nullif((SELECT count(*) FROM round_verdicts), 0) AS unconditional_rate
FROM round_depths
GROUP BY depth
ORDER BY depth
