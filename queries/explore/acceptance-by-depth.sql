-- title: Acceptance at each depth, conditional and unconditional, with 95 % intervals
-- needs: verifies
FROM acceptance_by_depth
