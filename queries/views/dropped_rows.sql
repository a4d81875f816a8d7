-- title: Rows that were not recorded, by reason and by what they were rows of; all ranks
-- needs: events, all_ranks.totals
-- about: The totals and the events count the same rows; where one of them was lost, the other still tells.
-- column what: the table, or launch or request; empty when not known
-- column rows: how many
WITH in_events AS (
    SELECT coalesce(detail ->> '$.reason', 'unknown reason') AS reason, coalesce(detail ->> '$.table', '') AS what,
           sum(coalesce((detail ->> '$.rows')::BIGINT, 1)) AS rows
    FROM events WHERE kind = 'rows_dropped' GROUP BY ALL
),
in_totals AS (
    SELECT regexp_replace(c.key, ': [^:]*$', '') AS reason, regexp_extract(c.key, ': ([^:]*)$', 1) AS what,
           sum(c.value::BIGINT) AS rows
    FROM all_ranks.totals t, json_each(t.dropped_rows_by_reason) c
    WHERE json_type(t.dropped_rows_by_reason) = 'OBJECT'
    GROUP BY ALL
)
SELECT reason, what, max(rows)::BIGINT AS rows
FROM (FROM in_events UNION ALL FROM in_totals)
GROUP BY ALL
