-- id: length.limit
-- title: Acceptance does not end at a position
-- severity: critical
-- certainty: sure
-- requires: rounds, verifies
-- causes: length.limit
-- about: The same requests, before and past one position: text has no such edge. Past a limit a draft often proposes
--        one token again and again.
-- param split_fails_share: float = 0.33, share of the other rounds' rate below which a kind of round fails
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- param many_z: float = 3.36, standard errors of intervals of which the widest of 64 positions is looked at
-- references: vllm#58080
WITH c AS (
    SELECT *, wilson_of(accepted, rounds, 1, $many_z) AS high,
           wilson_of(before_accepted, before_rounds, -1, $many_z) AS before_low,
           before_low > $live_rate AND high < $split_fails_share * before_low AS ends
    FROM position_cliff($split_rounds, $split_prompts)
),
tokens AS (
    SELECT count(DISTINCT draft_token) AS distinct_tokens
    FROM verifies v JOIN (FROM c WHERE ends) c ON v.position > c.position_from WHERE v.depth = 1
)
SELECT
    CASE WHEN ends THEN 'alarm' ELSE 'ok' END AS status,
    concat('position ', position_from) AS subject,
    concat('from position ', position_from, ' on the first draft was accepted in ', accepted, ' of ', rounds,
           ' rounds', CASE WHEN ends THEN concat(', with ', distinct_tokens, ' distinct tokens') END,
           '; before it in ', before_accepted, ' of ', before_rounds, ' rounds of the same ', prompts, ' prompts') AS reason,
    json_object('position_from', position_from, 'prompts', prompts, 'rounds', rounds, 'first_accepted', accepted,
                'before_rounds', before_rounds, 'before_first_accepted', before_accepted,
                'distinct_tokens', CASE WHEN ends THEN distinct_tokens END, 'high', high, 'before_low', before_low)
        AS evidence
FROM c, tokens
UNION ALL
SELECT 'unknown', 'positions',
    concat('no position has ', $split_rounds, ' rounds of ', $split_prompts, ' different prompts before and past it: send',
           ' longer requests'),
    json_object('positions', 0)
WHERE NOT EXISTS (FROM c)
