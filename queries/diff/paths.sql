-- title: Counted rounds of some requests, each with its tree as lists in the order of the nodes
-- needs: rounds, all_verifies
-- about: $hosts, $pids and $seqs are lists of equal length.
WITH chosen AS (SELECT unnest($hosts) AS host, unnest($pids)::INT AS pid, unnest($seqs)::BIGINT AS request_seq),
nodes AS (
    SELECT v.host, v.pid, v.request_seq, v.round, list(v.draft_token ORDER BY v.node) AS drafts,
           list(v.target_token ORDER BY v.node) AS targets, list(v.depth ORDER BY v.node) AS depths,
           list(v.accepted ORDER BY v.node) AS accepted, list(v.parent_node ORDER BY v.node) AS parents
    FROM all_verifies v SEMI JOIN chosen c USING (host, pid, request_seq)
    GROUP BY ALL
)
SELECT r.host, r.pid, r.request_seq, r.position, r.committed, n.drafts, n.targets, n.depths, n.accepted, n.parents
FROM (FROM rounds SEMI JOIN chosen USING (host, pid, request_seq)) r
JOIN nodes n USING (host, pid, round, request_seq)
ORDER BY r.host, r.pid, r.request_seq, r.position, r.round
