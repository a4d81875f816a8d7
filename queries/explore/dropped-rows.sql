-- title: Rows that were not recorded, by reason
-- needs: totals
WITH reasons AS (
    SELECT host, pid, unnest(json_keys(dropped_rows_by_reason)) AS reason, dropped_rows_by_reason AS rows
    FROM all_ranks.totals
    WHERE dropped_rows_by_reason IS NOT NULL
)
SELECT host, pid, reason, sum((rows ->> ('$."' || reason || '"'))::BIGINT)::BIGINT AS rows
FROM reasons
GROUP BY host, pid, reason
ORDER BY rows DESC
