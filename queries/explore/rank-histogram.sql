-- title: Where the target's token stood in the draft's distribution, by depth
-- needs: verifies
FROM rank_histogram
