-- title: Acceptance of the whole run from the totals, one row, exact whatever the sampling
-- needs: totals
SELECT
    coalesce(sum(rounds), 0)::BIGINT AS rounds,
    coalesce(sum(drafted), 0)::BIGINT AS drafted,
    coalesce(sum(accepted), 0)::BIGINT AS accepted,
    1 + sum(accepted) / nullif(sum(rounds), 0) AS accept_length
FROM totals
