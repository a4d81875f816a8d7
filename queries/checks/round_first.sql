-- id: round.first
-- title: The first round after a prefill is accepted as well as later ones
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: round.first
-- about: The draft input of the first round comes from the prefill, that of later ones from a verify.
-- param split_fails_share: float = 0.33, share of the other rounds' rate below which a kind of round fails
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: sglang#7242, sglang#10616
FROM split_verdicts(['first_round'], ['first_round'], 'first rounds',
    'every request had one round, or none its first',
    'the number of a request''s round was not recorded', $split_fails_share, TRUE, $live_rate, $split_rounds, $split_prompts)
