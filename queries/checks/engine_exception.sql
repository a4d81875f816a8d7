-- id: engine.exception
-- title: The engine raised no exception
-- severity: critical
-- certainty: symptom
-- causes: vocab.d2t_encoding, aux.not_captured, aux.width_mismatch, lm_head.replaced
SELECT
    'alarm' AS status, coalesce(detail ->> '$.where', 'engine') AS subject,
    concat(detail ->> '$.type', ': ' || left(detail ->> '$.message', 200),
           ' (in ' || (detail ->> '$.where') || coalesce(', ' || (detail ->> '$.phase'), '') || ')')
        AS reason,
    json_object('where', detail ->> '$.where', 'type', detail ->> '$.type', 'message', detail ->> '$.message',
                'phase', detail ->> '$.phase') AS evidence
FROM events WHERE kind = 'engine_exception'
UNION ALL
SELECT 'ok', 'engine', 'no exception passed through a hook', json_object('exceptions', 0)
WHERE NOT EXISTS (FROM events WHERE kind = 'engine_exception')
