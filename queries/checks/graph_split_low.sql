-- id: graph.split_low
-- title: Rounds from captured graphs are accepted about as often as eager ones
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: graph.stale
-- about: The same at a smaller distance: other text may explain it.
-- param split_low_share: float = 0.6, share of the other rounds' rate below which a kind of round lags behind
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: vllm#38311, sglang#10892
FROM split_verdicts(['graph', 'graph_batch_size'], ['graph'], 'captured graphs',
    'no graph ran, or every round ran from one with batches of one size',
    'whether a graph ran was not recorded', $split_low_share, FALSE, $live_rate, $split_rounds, $split_prompts)
