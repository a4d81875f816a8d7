-- id: position.rope
-- title: The draft's positions are those of training
-- severity: warning
-- certainty: harmless
-- requires: drafts
-- causes: position.offset
-- about: What a shift costs, position.offset judges. SGLang to 0.5.11 gives depth 2 and deeper a position one too far.
-- references: sglang#25015
WITH o AS (
    SELECT sum(drafts) AS n, coalesce(sum(drafts) FILTER (WHERE shift <> 0), 0) AS shifted,
           min(depth) FILTER (WHERE shift <> 0) AS depth, arg_max(shift, drafts) FILTER (WHERE shift <> 0) AS shift
    FROM rope_offsets
)
SELECT
    CASE WHEN n IS NULL THEN 'unknown' WHEN shifted > 0 THEN 'alarm' ELSE 'ok' END AS status,
    'positions' AS subject,
    CASE WHEN n IS NULL THEN concat('positions given to the draft were not recorded (captured graphs hide them): send',
                                    ' requests to a server with EAGLETRACE_LEVEL=tokens and --disable-cuda-graph')
         WHEN shifted > 0 THEN concat('the draft''s positions are off by ', shift, ' in ', shifted, ' of ', n,
                                      ' drafts, from depth ', depth, ' on')
         ELSE concat('the positions of ', n, ' drafts are those of training') END AS reason,
    json_object('drafts', n, 'shifted', shifted, 'shift', shift, 'from_depth', depth) AS evidence
FROM o
