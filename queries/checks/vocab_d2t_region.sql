-- id: vocab.d2t_region
-- title: Every region of the draft vocabulary is accepted now and then
-- severity: critical
-- certainty: sure
-- requires: first_draft_tokens, contract:t2d.in_checkpoint
-- causes: vocab.d2t_mismatch
-- about: Where d2t is wrong in one region only, its tokens are never accepted while the others are. Said only where
--        t2d contradicts the map in part as well, because a draft may simply be bad at some tokens. Regions hold
--        about equally many drafts, 30 or more, 8 at most, in the order of target ids.
-- param dead_region_rate: float = 0.15, rate that the upper bound of a dead region stays below
-- param live_region_rate: float = 0.3, rate that the lower bound of the others exceeds
WITH f AS (
    SELECT fact('t2d.in_checkpoint') = 'true' AS in_file, (fact('t2d.agreement') ->> '$.share')::DOUBLE AS share,
        (fact('t2d.agreement') ->> '$.marked')::BIGINT = (fact('t2d.agreement') ->> '$.map_length')::BIGINT AS same_size
),
placed AS (
    SELECT *, sum(drafts) OVER (ORDER BY draft_token) - drafts / 2 AS middle, sum(drafts) OVER () AS total
    FROM first_draft_tokens
),
region AS (
    SELECT min(draft_token) AS first_token, max(draft_token) AS last_token, sum(drafts) AS drafts,
        sum(accepted) AS accepted
    FROM placed GROUP BY floor(middle / total * greatest(1, least(8, total // 30)))
),
r AS (SELECT *, wilson(accepted, drafts, 1) < $dead_region_rate AS dead FROM region),
g AS (
    SELECT count(*) AS regions, count(*) FILTER (WHERE dead) AS dead,
        coalesce(sum(drafts) FILTER (WHERE dead), 0) AS drafts,
        coalesce(sum(accepted) FILTER (WHERE dead), 0) AS accepted,
        min(first_token) FILTER (WHERE dead) AS low, max(last_token) FILTER (WHERE dead) AS high,
        sum(accepted) FILTER (WHERE NOT dead) AS others_accepted, sum(drafts) FILTER (WHERE NOT dead) AS others
    FROM r
),
w AS (SELECT *, dead > 0 AND others > 0 AND wilson(others_accepted, others, -1) > $live_region_rate AS broken FROM g, f)
SELECT
    CASE WHEN NOT in_file THEN 'not_applicable' WHEN regions < 2 THEN 'unknown'
         WHEN broken AND same_size AND share < 1 THEN 'alarm' ELSE 'ok' END AS status,
    'd2t' AS subject,
    CASE WHEN NOT in_file THEN 'the checkpoint has no t2d that could confirm it'
         WHEN regions < 2 THEN 'too few first drafts to compare regions of the vocabulary: 60 would do'
         WHEN broken THEN concat('of ', drafts, ' first drafts with tokens ', low, ' to ', high, ' ', accepted,
             ' were accepted, of the others ', round(100 * others_accepted / others), ' %',
             CASE WHEN share < 1 THEN concat('; t2d marks only ', round(100 * share, 1), ' % of the served map')
                  ELSE '; but d2t and t2d agree' END)
         ELSE 'no region of the draft vocabulary is left out' END AS reason,
    json_object('dead_regions', dead, 'regions', regions, 'drafts', drafts, 'accepted', accepted, 'first_token', low,
                'last_token', high, 't2d_share', share) AS evidence
FROM w
