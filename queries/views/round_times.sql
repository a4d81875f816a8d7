-- title: When each round of a request began and ended, rank 0
-- needs: all_rounds, all_ranks.spans
-- about: Ends are those of the launches' spans, and never after the request's next round begins; where no span was
--        recorded a round lasts until the next one. Warm-up and health requests included.
-- column begin: start of the launch, ns since 1970 UTC
-- column finish: end of the launch, ns since 1970 UTC
WITH ends AS (
    SELECT host, pid, try_cast(attributes->>'$."eagle.round"' AS BIGINT) AS round,
           max(start_time_unix_nano + duration_time_unix_nano) AS finish
    FROM all_ranks.spans WHERE name = 'eagle.launch' GROUP BY ALL
), ran AS (
    SELECT r.host, r.pid, r.request_seq, r.round, r.request_round, r.row, r.drafted, r.accepted, r.committed,
           r.time_unix_nano AS begin,
           lead(r.time_unix_nano) OVER (PARTITION BY r.host, r.pid, r.request_seq ORDER BY r.time_unix_nano) AS next,
           e.finish AS launch_finish
    FROM all_rounds r LEFT JOIN ends e USING (host, pid, round)
    WHERE r.counted IS NOT FALSE AND r.time_unix_nano IS NOT NULL
)
SELECT
    * EXCLUDE (next, launch_finish),
    greatest(begin, least(coalesce(launch_finish, next, begin), coalesce(next, launch_finish, begin))) AS finish
FROM ran
