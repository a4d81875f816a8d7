-- id: trace.rows_dropped
-- title: No row was dropped while recording
-- severity: warning
-- certainty: harmless
WITH by_reason AS (
    SELECT reason, sum(rows)::BIGINT AS rows,
           string_agg(CASE WHEN what <> '' THEN concat(what, ' ', rows) END, ', ' ORDER BY rows DESC, what) AS parts
    FROM dropped_rows GROUP BY reason ORDER BY rows DESC, reason
)
SELECT
    'alarm' AS status, reason AS subject,
    concat(rows, ' rows were not recorded: ', reason, ' (' || parts || ')') AS reason,
    json_object('reason', reason, 'rows', rows, 'parts', parts) AS evidence
FROM by_reason
UNION ALL
SELECT 'ok', 'rows', 'no row was dropped', json_object('rows', 0)
WHERE NOT EXISTS (FROM by_reason)
