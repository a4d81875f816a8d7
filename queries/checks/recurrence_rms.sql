-- id: recurrence.rms
-- title: The hidden state fed back is about as large as the first one
-- severity: warning
-- certainty: symptom
-- requires: hidden
-- causes: recurrence.hidden
-- not_for: standalone: a language model of its own is fed back no hidden state
-- about: The draft's decoder layer gets the output of fc at depth 1 and its own hidden state at depth 2; fc of an
--        EAGLE-1 draft, or eh_proj of a layer of multi-token prediction, gets the target's hidden state at depth 1, and
--        the draft's own at depth 2. Drafts learn both, and their sizes differ; a norm more or less makes them differ
--        by far.
-- param rms_jump: float = 8, ratio of root mean squares beyond which it is said
WITH h AS (
    SELECT avg(rms) FILTER (WHERE stage = CASE WHEN fact('draft.family') IN ('eagle', 'nextn') THEN 'target_aux'
                                                ELSE 'fc_out' END) AS first,
           avg(rms) FILTER (WHERE stage = 'draft_in') AS later
    FROM hidden WHERE nan_count = 0
),
g AS (SELECT *, greatest(first / nullif(later, 0), later / nullif(first, 0)) AS ratio FROM h)
SELECT
    CASE WHEN ratio IS NULL THEN 'unknown' WHEN ratio > $rms_jump THEN 'alarm' ELSE 'ok' END AS status,
    'draft input' AS subject,
    CASE WHEN ratio IS NULL
         THEN concat('the states at depth 1 and 2 were not both seen (captured graphs hide them): send requests to a',
                     ' server with EAGLETRACE_LEVEL=tokens and --disable-cuda-graph')
         ELSE concat('root mean square of the draft''s input: ', round(first, 3), ' at depth 1, ', round(later, 3),
                     ' at depth 2') END AS reason,
    json_object('depth_1', first, 'depth_2', later) AS evidence
FROM g
