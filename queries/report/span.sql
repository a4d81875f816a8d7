-- title: First and last moment of the counted rounds, one row
-- column first: start of the first launch, ns since 1970 UTC; NULL without rounds
-- column last: start of the last launch
SELECT min(time_unix_nano) AS first, max(time_unix_nano) AS last
FROM rounds
WHERE accepted IS NOT NULL
