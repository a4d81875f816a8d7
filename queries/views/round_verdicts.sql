-- title: What the verdicts of each counted round come to, from verifies alone
-- needs: verifies
-- column accepted: correct drafts: accepted nodes, the root left out
-- column drafted: drafted tokens, the root left out
-- column max_depth: deepest drafted node
-- column bonus_token: the target's token after the last accepted node, or after the root
SELECT
    host, pid, round, request_seq,
    count(*) FILTER (WHERE depth > 0 AND accepted)::INT AS accepted,
    count(*) FILTER (WHERE depth > 0)::INT AS drafted,
    max(depth)::INT AS max_depth,
    arg_max(target_token, depth) FILTER (WHERE depth = 0 OR accepted) AS bonus_token
FROM verifies
GROUP BY ALL
