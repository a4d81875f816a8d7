-- id: recurrence.depth2
-- title: Depth 2 is accepted about as often as depth 1
-- severity: warning
-- certainty: possible
-- requires: position_stats
-- causes: recurrence.hidden, position.offset, graph.stale
-- not_for: standalone: a language model of its own is fed back no hidden state
-- about: From depth 2 on the draft runs on its own hidden state. Drafts that were trained on it keep their rate; even
--        those that were not lose less than half of it. Where each step has a draft of its own, a deeper one may be a
--        weaker one.
-- param recurrence_share: float = 0.5, share of the rate at depth 1 below which a deeper rate has collapsed
-- param live_rate: float = 0.3, rate at depth 1 that its lower end exceeds
-- param min_rounds: int = 30, drafts at depth 2 below which nothing is said
-- references: vllm#46075, vllm#47448, ATOM#1742
SELECT
    CASE WHEN steps > 1 THEN 'not_applicable'
         WHEN n2 < $min_rounds THEN 'unknown' WHEN low_1 > $live_rate AND high_2 < $recurrence_share * low_1 THEN 'alarm' ELSE 'ok' END AS status,
    'depth 2' AS subject,
    CASE WHEN steps > 1 THEN concat('each of ', steps, ' steps has a draft of its own')
         WHEN n2 < $min_rounds
         THEN concat(n2, ' drafts at depth 2 were reached; ', $min_rounds, ' would do: send requests')
         ELSE concat('at depth 1 ', a1, ' of ', n1, ' drafts were accepted, at depth 2 ', a2, ' of ', n2) END AS reason,
    json_object('reached_1', n1, 'accepted_1', a1, 'reached_2', n2, 'accepted_2', a2, 'low_1', low_1, 'high_2', high_2) AS evidence
FROM depth_rates, (
    SELECT count(DISTINCT regexp_extract(name, '^draft_step_\d+')) FILTER (WHERE starts_with(name, 'draft_step_')) AS steps
    FROM params WHERE side = 'draft'
)
