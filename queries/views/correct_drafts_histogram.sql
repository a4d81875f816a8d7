-- title: Rounds by number of correct drafts
-- needs: round_verdicts
-- column correct_drafts: correct drafts in the round, from 0 to the deepest depth drafted in the run
-- column rounds: counted rounds with so many
WITH counts AS (
    SELECT accepted AS correct_drafts, count(*) AS rounds FROM round_verdicts GROUP BY 1
),
bins AS (
    SELECT unnest(range(0, coalesce(max(max_depth), 0) + 1))::INT AS correct_drafts
    FROM round_verdicts HAVING count(*) > 0
)
SELECT
    b.correct_drafts,
    coalesce(c.rounds, 0) AS rounds,
    coalesce(c.rounds, 0) / (SELECT count(*) FROM round_verdicts) AS share
FROM bins b LEFT JOIN counts c USING (correct_drafts)
ORDER BY b.correct_drafts
