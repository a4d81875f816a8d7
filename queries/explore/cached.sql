-- title: Acceptance with and without a prefix-cache hit
-- needs: rounds, verifies
FROM acceptance_by_cached
