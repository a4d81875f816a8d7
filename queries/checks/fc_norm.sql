-- id: fc.norm
-- title: The norm in front of the fusion layer is that of the checkpoint
-- severity: critical
-- certainty: sure
-- requires: params, checkpoint_keys, contract:draft.config
-- causes: fc.norm_mismatch
-- references: vllm#38111, sglang#32334
WITH w AS (
    SELECT *, CASE WHEN dropped > 0 THEN 'ignored' WHEN asked AND served = 0 THEN 'unknown_flag'
                   WHEN tensors = 0 THEN 'untrained' END AS wrong
    FROM input_norms WHERE asked OR tensors > 0 OR served > 0
)
SELECT 'alarm' AS status, norm AS subject,
    CASE wrong
        WHEN 'ignored' THEN concat(dropped, ' of ', tensors, ' tensors of ', norm, ' in the checkpoint landed nowhere',
            CASE WHEN NOT asked THEN ': the draft''s configuration does not switch the norm on' END)
        WHEN 'unknown_flag' THEN concat('the draft''s configuration switches ', norm, ' on, and the engine has none')
        ELSE concat('the engine applies ', norm, ', for which the checkpoint has no tensor') END AS reason,
    json_object('norm', norm, 'asked', asked, 'tensors', tensors, 'dropped', dropped, 'served', served) AS evidence
FROM w WHERE wrong IS NOT NULL
UNION ALL
SELECT CASE WHEN count(*) = 0 THEN 'not_applicable' ELSE 'ok' END, 'norm',
    CASE WHEN count(*) = 0 THEN 'the draft has no norm in front of its fusion layer that a setting could leave out'
         ELSE concat(string_agg(norm, ', '), ' is applied with the checkpoint''s tensors') END,
    json_object('norms', count(*))
FROM w HAVING count(wrong) = 0
