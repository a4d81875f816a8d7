-- title: Statistics of hidden states, by stage and slot
-- needs: hidden
SELECT stage, slot, width, count(*) AS states, avg(rms) AS mean_rms, min(rms) AS min_rms, max(rms) AS max_rms,
       sum(nan_count)::BIGINT AS nan_count, avg(kurtosis) AS mean_kurtosis
FROM hidden
GROUP BY stage, slot, width
ORDER BY stage, slot
