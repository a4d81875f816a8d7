-- title: Load-time facts
SELECT key, expected, actual, source FROM contract ORDER BY key
