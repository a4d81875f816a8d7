-- title: What checkpoint or configuration ask for, for one key of `contract`; NULL if nothing asks
-- kind: macro
-- needs: contract
(fact_key) AS (
    SELECT any_value(CASE WHEN json_type(expected) <> 'NULL' THEN json_extract_string(expected, '$') END)
    FROM contract WHERE key = fact_key
)
