-- title: Acceptance of each request beside the engine's own counts
-- needs: requests, verifies
FROM acceptance_by_request
