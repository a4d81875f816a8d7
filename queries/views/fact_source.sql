-- title: Where one key of `contract` was read
-- kind: macro
-- needs: contract
(fact_key) AS (SELECT any_value(source) FROM contract WHERE key = fact_key)
