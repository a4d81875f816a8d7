-- id: rope.trend
-- title: Acceptance does not fall along a request
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: rope.mismatch, position.offset, length.limit
-- about: The later half of each request's rounds against its earlier half. Rotary settings that differ from training
--        cost more the longer the context; so does a draft that was trained on short text.
-- param split_low_share: float = 0.6, share of the other rounds' rate below which a kind of round lags behind
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param min_rounds: int = 30, rounds of each half below which nothing is said
-- references: TensorRT-LLM#19036
WITH r AS (
    SELECT list(accepted > 0 ORDER BY position, round) AS course
    FROM rounds WHERE drafted > 0 AND accepted IS NOT NULL AND position IS NOT NULL
    GROUP BY host, pid, request_seq
),
s AS (
    SELECT len(course) AS n, n // 2 AS half, len(list_filter(course, lambda a: a)) AS accepted,
           len(list_filter(course[1:half], lambda a: a)) AS early_accepted
    FROM r
),
h AS (
    SELECT coalesce(sum(half), 0)::BIGINT AS early, coalesce(sum(s.early_accepted), 0)::BIGINT AS early_accepted,
           coalesce(sum(n - half), 0)::BIGINT AS late,
           coalesce(sum(accepted - s.early_accepted), 0)::BIGINT AS late_accepted
    FROM s
),
g AS (
    SELECT *, wilson(early_accepted, early, -1) AS early_low, wilson(late_accepted, late, 1) AS late_high FROM h
)
SELECT
    CASE WHEN early < $min_rounds THEN 'unknown' WHEN early_low > $live_rate AND late_high < $split_low_share * early_low THEN 'alarm' ELSE 'ok' END AS status,
    'positions' AS subject,
    CASE WHEN early < $min_rounds
         THEN concat(early, ' rounds are too few to compare the halves of requests; ', 2 * $min_rounds,
                     ' would do: send longer requests')
         ELSE concat('the first draft was accepted in ', early_accepted, ' of ', early, ' rounds of the earlier half',
                     ' of requests, in ', late_accepted, ' of ', late, ' of the later') END AS reason,
    json_object('early_rounds', early, 'early_accepted', early_accepted, 'late_rounds', late,
                'late_accepted', late_accepted, 'early_low', early_low, 'late_high', late_high) AS evidence
FROM g
