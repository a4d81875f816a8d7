-- title: Acceptance by round after the prefill
-- needs: rounds, verifies
FROM acceptance_by_request_round
