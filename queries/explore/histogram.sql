-- title: Rounds by number of correct drafts
-- needs: verifies
FROM correct_drafts_histogram
