-- title: Acceptance by sequence position
-- needs: rounds, verifies
FROM acceptance_by_position
