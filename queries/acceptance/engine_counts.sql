-- title: The engine's own figures: completion tokens over verify rounds of finished requests, and per round
SELECT
    (SELECT sum(output_tokens) / nullif(sum(engine_rounds), 0) FROM requests
     WHERE engine_rounds > 0 AND end_time_unix_nano IS NOT NULL) AS per_request,
    (SELECT 1 + sum(engine_accepted) / nullif(sum(engine_known), 0) FROM round_counts) AS per_round
