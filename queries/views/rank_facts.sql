-- title: Load-time facts of each rank beside those of the first
-- needs: all_ranks.contract
-- about: Of a fact that says how far something was changed, whether it was: how far differs between parts of a tensor.
-- column dp, tp: the rank
-- column first: what the first rank of the same pipeline stage has
-- column other: what this rank has
WITH newest AS (
    SELECT coalesce(dp_rank, 0) AS dp, coalesce(pp_rank, 0) AS pp, coalesce(tp_rank, 0) AS tp, key,
           CASE WHEN ends_with(key, '.replaced') THEN json_extract_string(actual, '$.changed') ELSE actual END AS value
    FROM all_ranks.contract
    WHERE json_type(actual) <> 'NULL'
    QUALIFY row_number() OVER (PARTITION BY dp, pp, tp, key ORDER BY time_unix_nano DESC NULLS LAST) = 1
)
SELECT b.dp, b.tp, b.key, a.value AS first, b.value AS other
FROM newest b JOIN newest a ON a.pp = b.pp AND a.key = b.key AND a.dp = 0 AND a.tp = 0
WHERE b.dp > 0 OR b.tp > 0
