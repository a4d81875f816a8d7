-- title: Tokens drafted at depth 1, and how often each was accepted
-- needs: verifies
SELECT draft_token, count(*) AS drafts, count(*) FILTER (WHERE accepted) AS accepted
FROM verifies WHERE depth = 1 AND reached
GROUP BY draft_token
