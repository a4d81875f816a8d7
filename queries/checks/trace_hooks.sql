-- id: trace.hooks
-- title: Every hook that is needed was attached and fired
-- severity: warning
-- certainty: harmless
-- requires: hooks
WITH bad AS (
    SELECT * FROM hooks
    WHERE status IN ('shut_out', 'disabled_after_errors') OR (required AND status IN ('missing', 'never_fired'))
)
SELECT
    'alarm' AS status, target AS subject,
    concat(target, ' is ', replace(status, '_', ' '), ': ' || detail,
           CASE WHEN errors > 0 THEN concat(' (', errors, ' errors of the hook)') END) AS reason,
    json_object('target', target, 'status', status, 'detail', detail, 'errors', errors) AS evidence
FROM bad
UNION ALL
SELECT 'ok', 'hooks', concat(
        count(*) FILTER (WHERE status IN ('installed', 'graph_hidden')), ' hooks are attached',
        CASE WHEN bool_or(status = 'graph_hidden') THEN concat(
            '; ', count(*) FILTER (WHERE status = 'graph_hidden'), ' of them see nothing of what captured graphs run')
        END),
    json_object('hooks', count(*))
FROM hooks HAVING NOT EXISTS (FROM bad)
