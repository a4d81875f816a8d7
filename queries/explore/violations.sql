-- title: Load-time facts whose value differs from what was expected
-- needs: contract
-- about: A difference is a fact, not yet a cause: `eagletrace diagnose` weighs it. Expectations of several parts
--        (such as the served map's) are left to it.
SELECT key, expected, actual, source
FROM contract
WHERE expected IS NOT NULL AND json_type(expected) <> 'OBJECT' AND json(expected) IS DISTINCT FROM json(actual)
ORDER BY key
