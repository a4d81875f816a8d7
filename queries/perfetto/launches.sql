-- title: Verify launches, by start, with what their rounds came to
WITH counted AS (
    SELECT host, pid, round, sum(drafted) AS drafted, sum(accepted) AS accepted, sum(committed) AS committed
    FROM all_ranks.rounds WHERE counted IS NOT FALSE GROUP BY ALL
), spans_of_launches AS (
    SELECT host, pid, try_cast(attributes->>'$."eagle.round"' AS BIGINT) AS round,
           start_time_unix_nano AS begin, start_time_unix_nano + duration_time_unix_nano AS finish,
           try_cast(attributes->>'$."eagle.batch_size"' AS BIGINT) AS batch_size,
           try_cast(attributes->>'$."eagle.draft_nodes"' AS BIGINT) AS draft_nodes,
           try_cast(attributes->>'$."eagle.graph"' AS BOOLEAN) AS graph
    FROM all_ranks.spans WHERE name = 'eagle.launch' AND start_time_unix_nano IS NOT NULL
)
SELECT s.*, c.drafted::BIGINT AS drafted, c.accepted::BIGINT AS accepted, c.committed::BIGINT AS committed
FROM spans_of_launches s LEFT JOIN counted c USING (host, pid, round)
ORDER BY begin, finish DESC
