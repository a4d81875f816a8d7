-- title: What the engine has, for one key of `contract`: text without JSON quotes, NULL if it is null or unrecorded
-- kind: macro
-- needs: contract
-- about: fact('server.speculative_algorithm') gives EAGLE3; objects and lists stay JSON text.
(fact_key) AS (
    SELECT any_value(CASE WHEN json_type(actual) <> 'NULL' THEN json_extract_string(actual, '$') END)
    FROM contract WHERE key = fact_key
)
