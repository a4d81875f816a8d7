-- title: Rows that were not recorded, by reason
-- needs: totals
SELECT t.host, t.pid, c.key AS reason, sum(c.value::BIGINT)::BIGINT AS rows
FROM all_ranks.totals t, json_each(t.dropped_rows_by_reason) c
WHERE json_type(t.dropped_rows_by_reason) = 'OBJECT'
GROUP BY ALL
ORDER BY rows DESC, t.host, t.pid, reason
