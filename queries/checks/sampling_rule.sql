-- id: sampling.rule
-- title: A draft that equals the target's choice is accepted
-- severity: critical
-- certainty: sure
-- requires: position_stats
-- causes: sampling.rule
-- references: vllm#40651
WITH p AS (
    SELECT sum(positions) AS n, coalesce(sum(positions) FILTER (WHERE rejected_equal), 0) AS wrong
    FROM position_stats
)
SELECT
    CASE WHEN wrong > 0 THEN 'alarm' ELSE 'ok' END AS status,
    'verification' AS subject,
    CASE WHEN wrong > 0 THEN concat(wrong, ' of ', n, ' drafts that equal the target''s choice were rejected')
         ELSE concat('every draft that equals the target''s choice was accepted, of ', n, ' positions') END AS reason,
    json_object('positions', n, 'rejected_though_equal', wrong) AS evidence
FROM p
