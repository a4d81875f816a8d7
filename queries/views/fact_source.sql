-- title: Where one key of `contract` was read
-- kind: macro
(fact_key) AS (SELECT any_value(source) FROM contract WHERE key = fact_key)
