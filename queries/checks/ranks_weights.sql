-- id: ranks.weights
-- title: Parameters that every rank holds whole are the same on all
-- severity: critical
-- certainty: sure
-- requires: params, checkpoint_keys
-- causes: batch.row
-- about: A parameter is whole where it has as many elements as its checkpoint tensors. Parts of a sharded one differ
--        between tensor-parallel ranks by nature and are not compared.
-- references: sglang#16310
WITH newest AS (
    SELECT coalesce(dp_rank, 0) AS dp, coalesce(pp_rank, 0) AS pp, coalesce(tp_rank, 0) AS tp, *
    FROM all_ranks.params
    WHERE side = 'draft' AND phase IS NOT DISTINCT FROM 'serving'
    QUALIFY row_number() OVER (PARTITION BY dp, pp, tp, name ORDER BY time_unix_nano DESC NULLS LAST) = 1
),
sizes AS (
    SELECT host, pid, key, any_value(elements) AS elements FROM all_ranks.checkpoint_keys GROUP BY ALL
),
whole AS (
    SELECT n.host, n.pid, n.name
    FROM (SELECT host, pid, name, elements, unnest(checkpoint_keys) AS key FROM newest) n
    JOIN sizes k USING (host, pid, key)
    GROUP BY ALL HAVING sum(k.elements) = any_value(n.elements)
),
p AS (SELECT n.*, w.name IS NOT NULL AS whole FROM newest n LEFT JOIN whole w USING (host, pid, name)),
pairs AS (
    SELECT b.dp, b.tp, b.name, b.shape, b.rms, a.shape AS shape_on_first, a.rms AS rms_on_first,
           a.checksum = b.checksum AND a.shape = b.shape AS same
    FROM p b JOIN p a ON a.pp = b.pp AND a.name = b.name AND a.dp = 0 AND a.tp = 0
    WHERE (b.dp > 0 OR b.tp > 0) AND (a.whole OR b.whole)
),
f AS (
    SELECT dp, tp, count(same) AS compared, count(*) FILTER (NOT same) AS differing,
           list({'name': name, 'shape': shape, 'rms': rms, 'shape_on_rank_0': shape_on_first,
                 'rms_on_rank_0': rms_on_first} ORDER BY name) FILTER (NOT same) AS which
    FROM pairs GROUP BY ALL HAVING count(same) > 0
)
SELECT
    CASE WHEN differing > 0 THEN 'alarm' ELSE 'ok' END AS status,
    concat('dp rank ', dp, ', tp rank ', tp) AS subject,
    CASE WHEN differing > 0
         THEN concat(differing, ' of ', compared, ' draft parameters differ between the first rank and dp rank ', dp,
                     ', tp rank ', tp, ': ', array_to_string(list_transform(which[:3], lambda x: x.name), ', '),
                     CASE WHEN differing > 3 THEN ', ...' END)
         ELSE concat(compared, ' draft parameters are the same on both ranks') END AS reason,
    json_object('dp_rank', dp, 'tp_rank', tp, 'compared', compared, 'differing', differing, 'which', which[:10])
        AS evidence
FROM f
UNION ALL
SELECT CASE WHEN EXISTS (FROM newest WHERE dp > 0 OR tp > 0) THEN 'unknown' ELSE 'not_applicable' END, 'ranks',
       CASE WHEN EXISTS (FROM newest WHERE dp > 0 OR tp > 0)
            THEN 'no parameter was recorded whole on two ranks: trace the start of the server (EAGLETRACE=1)'
            ELSE 'one rank' END,
       json_object('compared', 0)
WHERE NOT EXISTS (FROM f)
