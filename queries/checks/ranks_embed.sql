-- id: ranks.embed
-- title: The ranks agree on whose embedding the draft uses
-- severity: critical
-- certainty: sure
-- requires: contract:embed.shared_with_target
-- causes: embed.mismatch
-- about: How far an embedding was changed differs between parts of it; whether it was does not.
WITH pairs AS (
    SELECT * FROM rank_facts WHERE starts_with(key, 'embed.') OR key = 'sharing.set_embed_calls'
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
