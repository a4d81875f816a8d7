-- title: Acceptance of first drafts by region of the vocabulary
-- needs: verifies
-- about: Regions hold about equally many drafts, at least 30 where there are enough, 8 at most; by target id, which in
--        an ordinary map ascends with the draft id. Token ids of a redacted trace have no order: no rows.
-- column accepted: drafts of the region that were accepted
WITH tokens AS (
    SELECT draft_token, count(*) AS n, count(*) FILTER (WHERE accepted) AS accepted
    FROM verifies WHERE depth = 1 AND reached
    GROUP BY draft_token
),
placed AS (
    SELECT *, sum(n) OVER (ORDER BY draft_token) - n / 2 AS middle, sum(n) OVER () AS total FROM tokens
),
numbered AS (
    SELECT *, floor(middle / total * greatest(1, least(8, total // 30)))::INT AS region FROM placed
)
SELECT region, min(draft_token) AS first_token, max(draft_token) AS last_token,
    sum(n)::BIGINT AS drafts, sum(accepted)::BIGINT AS accepted
FROM numbered
WHERE total > 0
GROUP BY region
ORDER BY region
