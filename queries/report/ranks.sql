-- title: Where the target's token stood in the draft's distribution, in classes, by depth
-- about: A position counts once, however many branches a tree has there: by the first node under its parent.
-- column class: first rank of the class (1, 2, 3, 4, 11, 101, 1001), 0 where the token is not in the draft vocabulary,
--        NULL where the rank was not recorded
WITH nodes AS (
    SELECT host, pid, round, request_seq, node, parent_node, depth, target_token_in_draft_vocab AS known,
           draft_rank_of_target_token AS rank
    FROM verifies
    WHERE depth > 0 AND reached
),
tree AS (SELECT bool_or(node <> depth) AS tree FROM nodes),
positions AS (
    SELECT depth, known, rank FROM nodes, tree WHERE NOT tree
    UNION ALL
    SELECT depth, any_value(known), any_value(rank) FROM nodes, tree WHERE tree
    GROUP BY host, pid, round, request_seq, parent_node, depth
)
SELECT depth::INT AS depth,
    CASE WHEN known = FALSE THEN 0 WHEN rank <= 3 THEN rank WHEN rank <= 10 THEN 4 WHEN rank <= 100 THEN 11
         WHEN rank <= 1000 THEN 101 WHEN rank > 1000 THEN 1001 END AS class,
    count(*) AS positions
FROM positions
GROUP BY ALL
ORDER BY depth, class NULLS LAST
