-- id: grammar.requests_low
-- title: Requests with a grammar are accepted about as often as others
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: grammar.masked
-- about: The same at a smaller distance: other text may explain it.
-- param split_low_share: float = 0.6, share of the other rounds' rate below which a kind of round lags behind
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: vllm#14702
FROM split_verdicts(['grammar'], ['grammar'], 'requests with a grammar',
    'no request had a grammar, or every one',
    'whether requests had a grammar was not recorded', $split_low_share, FALSE, $live_rate, $split_rounds, $split_prompts)
