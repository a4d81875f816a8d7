-- title: How far the positions that the draft was given lie from those that it is trained on, by depth
-- needs: draft_counts
-- about: Where the position was not recorded there is no row.
-- column shift: positions too far
SELECT depth, shift, drafts
FROM draft_counts
WHERE shift IS NOT NULL
