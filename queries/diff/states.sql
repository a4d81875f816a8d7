-- title: Recorded states of one request, prompt first
-- needs: tensors
SELECT stage, layer, depth, round, position, dtype, shape, data
FROM tensors
WHERE host = $host AND pid = $pid AND request_seq = $seq
ORDER BY round NULLS FIRST, position
