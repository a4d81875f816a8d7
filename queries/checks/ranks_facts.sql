-- id: ranks.facts
-- title: The ranks agree on what is served
-- severity: warning
-- certainty: possible
-- requires: contract:draft.architecture
-- causes: batch.row
-- about: Load-time facts apart from sharing. The shapes of a forward depend on its requests.
WITH pairs AS (
    SELECT * FROM rank_facts WHERE regexp_matches(key, '^(aux|d2t|t2d|draft|target|forward|env)\.|^server\.speculative|^hot_token_id$')
        AND key <> 'forward.fc_shapes'
),
differing AS (SELECT * FROM pairs WHERE first <> other)
SELECT
    'alarm' AS status, key AS subject,
    concat('ranks disagree on ', key, ': ', first, ' on the first, ', other,
           ' on dp rank ', dp, ', tp rank ', tp) AS reason,
    json_object('key', key, 'dp_rank', dp, 'tp_rank', tp, 'value', other, 'value_on_rank_0', first) AS evidence
FROM differing
UNION ALL
SELECT CASE WHEN count(*) > 0 THEN 'ok' ELSE 'not_applicable' END, 'ranks',
       CASE WHEN count(*) > 0 THEN concat('the ranks agree on ', count(DISTINCT key), ' facts') ELSE 'one rank' END,
       json_object('compared', count(*))
FROM pairs HAVING NOT EXISTS (FROM differing)
