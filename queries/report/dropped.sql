-- title: Rows that were not recorded
SELECT reason, what, rows FROM dropped_rows ORDER BY rows DESC
