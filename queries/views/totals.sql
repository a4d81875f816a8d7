-- title: Totals of every interval, rank 0
-- needs: all_totals
-- about: Exact whatever the sampling; they count user requests and counted rounds only.
SELECT * FROM all_totals
