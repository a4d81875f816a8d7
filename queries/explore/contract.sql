-- title: Load-time facts: what was expected and what the engine has
-- needs: contract
SELECT key, expected, actual, source
FROM contract
ORDER BY key
