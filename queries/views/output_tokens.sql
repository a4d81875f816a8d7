-- title: The output tokens of each request, rebuilt from rounds and verdicts
-- needs: rounds, verifies, all_rounds, all_verifies, round_verdicts, requests
-- about: Every counted round gives its root, its accepted drafts and the bonus token, up to the tokens
--        committed. A position seen twice (a root is the bonus of the round before) counts once, the later round's.
--        A token that a prefill gave and no round followed (the request ended with it, or was retracted) stands
--        in a row of its own, with request_round 0.
-- column output_index: index in the output, 0 for the token that the prefill gave
-- column source: root, draft, bonus or prefill: what first gave the token
WITH nodes AS (
    SELECT r.host, r.pid, r.request_seq, r.request_id, r.round, r.position + v.depth AS position,
           v.draft_token AS token, CASE WHEN v.depth = 0 THEN 'root' ELSE 'draft' END AS source
    FROM rounds r
    JOIN verifies v USING (host, pid, round, request_seq)
    WHERE v.depth = 0 OR (v.accepted AND v.depth <= coalesce(r.committed, v.depth))
    UNION ALL
    SELECT r.host, r.pid, r.request_seq, r.request_id, r.round, r.position, v.draft_token, 'prefill'
    FROM all_rounds r
    JOIN all_verifies v USING (host, pid, round, request_seq)
    JOIN requests q USING (host, pid, request_seq)
    WHERE r.request_round = 0
    UNION ALL
    SELECT r.host, r.pid, r.request_seq, r.request_id, r.round, r.position + b.accepted + 1,
           b.bonus_token, 'bonus'
    FROM rounds r
    JOIN round_verdicts b USING (host, pid, round, request_seq)
    WHERE b.accepted + 1 <= coalesce(r.committed, b.accepted + 1)
)
SELECT
    n.host, n.pid, n.request_seq,
    any_value(coalesce(q.request_id, n.request_id)) AS request_id,
    n.position,
    any_value(n.position - q.prompt_tokens) AS output_index,
    arg_max(n.token, n.round) AS token,
    arg_min(n.source, n.round) AS source
FROM nodes n
LEFT JOIN requests q ON q.host = n.host AND q.pid = n.pid AND q.request_seq = n.request_seq
GROUP BY n.host, n.pid, n.request_seq, n.position
ORDER BY n.host, n.pid, n.request_seq, n.position
