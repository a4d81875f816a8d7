-- id: sampling.temperature
-- title: Requests that sample are accepted about as often as greedy ones
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: sampling.rule
-- about: A high temperature takes acceptance by itself: sampled tokens are less likely ones, for the draft too.
-- param split_low_share: float = 0.6, share of the other rounds' rate below which a kind of round lags behind
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: vllm#40651
FROM split_verdicts(['sampled'], ['sampled'], 'requests that sample',
    'no request sampled, or every one',
    'temperatures were not recorded', $split_low_share, FALSE, $live_rate, $split_rounds, $split_prompts)
