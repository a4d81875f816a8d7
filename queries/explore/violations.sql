-- title: Load-time facts whose value differs from what was expected
-- needs: contract
-- about: A difference is a fact, not yet a cause: `eagletrace diagnose` weighs it.
SELECT key, expected, actual, source
FROM contract
WHERE expected IS NOT NULL AND expected::JSON IS DISTINCT FROM actual::JSON
ORDER BY key
