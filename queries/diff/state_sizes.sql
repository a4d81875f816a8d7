-- title: Size of the states that the draft is given, by slot
-- needs: hidden
-- column rms: median over the positions looked at
SELECT stage, coalesce(slot, 0)::INT AS slot, any_value(width)::INT AS width, median(rms) AS rms, count(*)::BIGINT AS positions
FROM hidden
WHERE stage IN ('target_aux', 'fc_in') AND nan_count = 0
GROUP BY ALL
ORDER BY stage, slot
