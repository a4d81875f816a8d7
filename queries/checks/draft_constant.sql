-- id: draft.constant
-- title: The draft proposes different tokens
-- severity: warning
-- certainty: symptom
-- requires: first_draft_tokens
-- causes: numerics.nan, length.limit, weights.not_loaded
-- about: The best of logits that are all NaN is id 0; a draft without its weights has one best token as well.
-- param constant_share: float = 0.9, share of first drafts with one token, nearly all rejected, from which it is said
-- param min_rounds: int = 30, first drafts below which nothing is said
WITH t AS (
    SELECT sum(drafts)::BIGINT AS n, max(drafts) AS most, arg_max(draft_token, (drafts, -draft_token)) AS token,
           arg_max(accepted, (drafts, -draft_token)) AS accepted
    FROM first_draft_tokens
)
SELECT
    CASE WHEN n < $min_rounds THEN 'unknown'
         WHEN most > $constant_share * n AND most - accepted > $constant_share * most THEN 'alarm' ELSE 'ok' END AS status,
    'depth 1' AS subject,
    CASE WHEN n < $min_rounds
         THEN concat(n, ' first drafts are too few to compare tokens; ', $min_rounds, ' would do: send requests')
         ELSE concat('token ', token, ' is the first draft in ', most, ' of ', n, ' rounds, ', accepted, ' accepted')
         END AS reason,
    json_object('drafts', n, 'token', token, 'drafts_of_token', most, 'accepted', accepted) AS evidence
FROM t
