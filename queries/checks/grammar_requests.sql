-- id: grammar.requests
-- title: Requests with a grammar are accepted as well as others
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: grammar.masked
-- about: A grammar that forbids what the draft proposes takes its drafts, and those only.
-- param split_fails_share: float = 0.33, share of the other rounds' rate below which a kind of round fails
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: vllm#14702
FROM split_verdicts(['grammar'], ['grammar'], 'requests with a grammar',
    'no request had a grammar, or every one',
    'whether requests had a grammar was not recorded', $split_fails_share, TRUE, $live_rate, $split_rounds, $split_prompts)
