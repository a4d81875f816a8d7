-- id: trace.rows_dropped
-- title: No row was dropped while recording
-- severity: warning
-- certainty: harmless
SELECT
    'alarm' AS status, coalesce(detail ->> '$.table', 'rows') AS subject,
    concat(coalesce(sum((detail ->> '$.rows')::BIGINT)::VARCHAR, 'some'), ' rows of ',
           coalesce(detail ->> '$.table', 'the trace'), ' were not recorded (', any_value(detail ->> '$.reason'), ')')
        AS reason,
    json_object('table', detail ->> '$.table', 'rows', sum((detail ->> '$.rows')::BIGINT),
                'reason', any_value(detail ->> '$.reason')) AS evidence
FROM events WHERE kind = 'rows_dropped'
GROUP BY detail ->> '$.table'
UNION ALL
SELECT 'ok', 'rows', 'no row was dropped', json_object('events', 0)
WHERE NOT EXISTS (SELECT 1 FROM events WHERE kind = 'rows_dropped')
