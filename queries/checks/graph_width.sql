-- id: graph.width
-- title: The captured draft extend takes the hidden states that it is given
-- severity: critical
-- certainty: sure
-- requires: contract
-- causes: graph.stale
-- about: SGLang copies hidden states into the graph's buffer only where the widths are equal, and replays on what is
--        there otherwise.
-- references: SGLang 0.4.10 to 0.5.10.post1 with configured layers
WITH f AS (
    SELECT try_cast(fact('graph.draft_extend_input_width') AS BIGINT) AS buffer,
           try_cast(expected('graph.draft_extend_input_width') AS BIGINT) AS given
)
SELECT
    CASE WHEN buffer IS NULL THEN 'not_applicable' WHEN given IS NULL THEN 'unknown' WHEN buffer <> given THEN 'alarm'
         ELSE 'ok' END AS status,
    'draft extend' AS subject,
    CASE WHEN buffer IS NULL THEN 'no draft extend was captured'
         WHEN given IS NULL THEN 'no hidden state was given to the captured draft extend yet: send a request'
         WHEN buffer <> given THEN concat('the captured draft extend has room for hidden states ', buffer,
                                          ' wide and is given ', given, ': it runs on old values')
         ELSE concat('the captured draft extend takes hidden states ', buffer, ' wide, as given') END AS reason,
    json_object('buffer', buffer, 'given', given) AS evidence
FROM f
