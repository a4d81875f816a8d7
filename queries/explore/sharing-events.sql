-- title: Every call that set the draft's embedding or head, with checksums before and after
-- needs: events
SELECT
    make_timestamp(time_unix_nano // 1000) AS time, tp_rank, kind, detail ->> '$.caller' AS caller,
    detail ->> '$.embed_before.checksum' AS embed_before, detail ->> '$.embed_after.checksum' AS embed_after,
    detail ->> '$.head_before.checksum' AS head_before, detail ->> '$.head_after.checksum' AS head_after,
    detail ->> '$.embed_after.shape' AS embed_shape, detail ->> '$.head_after.shape' AS head_shape
FROM events
WHERE kind IN ('set_embed', 'set_embed_and_head', 'set_lm_head_from_target')
ORDER BY time_unix_nano
