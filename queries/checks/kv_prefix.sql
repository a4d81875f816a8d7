-- id: kv.prefix
-- title: Rounds behind a cached prefix or a chunk are accepted as well as others
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: kv.prefix
-- about: Nothing but the cache tells these rounds from others; text that differs does not make acceptance
--        vanish on one side.
-- param split_fails_share: float = 0.33, share of the other rounds' rate below which a kind of round fails
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: sglang#10846, sglang#26329, sglang#17338
FROM split_verdicts(['cached', 'chunked', 'near_edge'], ['cached'], 'cached prefixes',
    'no request had cached tokens or a prompt computed in chunks',
    'whether tokens were cached was not recorded', $split_fails_share, TRUE, $live_rate, $split_rounds, $split_prompts)
