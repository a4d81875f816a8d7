-- title: Acceptance by row of the batch
-- needs: rounds, verifies
FROM acceptance_by_row
