-- title: Processes of the run, those of one host together
SELECT host, pid, max(tp_rank) AS tp_rank, max(dp_rank) AS dp_rank FROM (
    SELECT DISTINCT host, pid, tp_rank, dp_rank FROM all_ranks.spans
    UNION SELECT DISTINCT host, pid, tp_rank, dp_rank FROM all_ranks.rounds
    UNION SELECT DISTINCT host, pid, tp_rank, dp_rank FROM all_ranks.totals
    UNION SELECT DISTINCT host, pid, tp_rank, dp_rank FROM all_ranks.requests
    UNION SELECT DISTINCT host, pid, tp_rank, dp_rank FROM all_ranks.events
) GROUP BY ALL ORDER BY host, tp_rank NULLS FIRST, pid
