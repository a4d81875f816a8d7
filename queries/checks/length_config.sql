-- id: length.config
-- title: No request goes past the draft's own length
-- severity: warning
-- certainty: possible
-- requires: contract:draft.rope, rounds
-- causes: length.limit
-- about: max_position_embeddings of the draft's configuration. Most drafts are trained on less than what they serve,
--        and go on working.
-- param live_rate: float = 0.3, rate that the upper end of the rounds past it stays below where they fail
-- references: vllm#58080
WITH f AS (SELECT try_cast(fact('draft.rope') ->> '$.max_position' AS BIGINT) AS most),
g AS (
    SELECT any_value(most) AS most, max(position) AS reached, count(*) FILTER (WHERE position >= most) AS n,
           count(*) FILTER (WHERE position >= most AND accepted > 0) AS a
    FROM f LEFT JOIN rounds ON drafted > 0 AND accepted IS NOT NULL
),
w AS (SELECT *, wilson(a, n, 1) AS high FROM g)
SELECT
    CASE WHEN most IS NULL OR reached IS NULL THEN 'unknown' WHEN high < $live_rate THEN 'alarm' ELSE 'ok' END AS status,
    'max_position_embeddings' AS subject,
    CASE WHEN most IS NULL OR reached IS NULL
         THEN concat('the draft''s length or the positions of rounds were not recorded: trace the start of the server,',
                     ' with EAGLETRACE_LEVEL=tokens')
         WHEN n > 0 THEN concat('the draft is configured for ', most, ' positions; past them the first draft was',
                                ' accepted in ', a, ' of ', n, ' rounds')
         ELSE concat('requests reached position ', reached, ' of the ', most, ' that the draft is configured for') END
        AS reason,
    json_object('reached', reached, 'max_position', most, 'rounds_past', n, 'first_accepted', a, 'high', high) AS evidence
FROM w
