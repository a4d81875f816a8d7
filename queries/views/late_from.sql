-- title: The time from which on first drafts are accepted less often than before, if anything; at most one row
-- needs: rounds, events
-- about: Of the updates of weights that were recorded, or else of all moments, the one that parts rounds best: the
--        largest difference of both rates for the number of rounds on both sides, of which there are 30 or more (after
--        an update also fewer). That it parts them best does not mean that it parts them much.
-- column time_unix_nano: the moment
-- column updated: whether it is that of a recorded update
WITH r AS (
    SELECT time_unix_nano AS t, accepted > 0 AS a, ntile(1024) OVER (ORDER BY time_unix_nano) AS bucket FROM rounds
    WHERE drafted > 0 AND accepted IS NOT NULL AND time_unix_nano IS NOT NULL
),
b AS (SELECT min(t) AS t, count(*) AS n, count(*) FILTER (WHERE a) AS a FROM r GROUP BY bucket),
updates AS (SELECT DISTINCT time_unix_nano AS t FROM events WHERE kind = 'weights_changed'),
moments AS (
    SELECT t, TRUE AS updated FROM updates
    UNION ALL SELECT t, FALSE FROM b WHERE NOT EXISTS (FROM updates)
),
sides AS (
    SELECT m.t, m.updated, sum(n) FILTER (WHERE b.t < m.t) AS n0, sum(a) FILTER (WHERE b.t < m.t) AS a0,
           sum(n) FILTER (WHERE b.t >= m.t) AS n1, sum(a) FILTER (WHERE b.t >= m.t) AS a1
    FROM moments m, b GROUP BY ALL
)
SELECT t AS time_unix_nano, updated FROM sides
WHERE a0 / n0 > a1 / n1 AND (updated OR least(n0, n1) >= 30)
ORDER BY (a0 / n0 - a1 / n1) ** 2 * n0 * n1 DESC, t
LIMIT 1
