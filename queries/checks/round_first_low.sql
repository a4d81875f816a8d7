-- id: round.first_low
-- title: The first round after a prefill is accepted about as often as later ones
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: round.first
-- about: The same at a smaller distance: other text may explain it.
-- param split_low_share: float = 0.6, share of the other rounds' rate below which a kind of round lags behind
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: sglang#7242, sglang#10616
FROM split_verdicts(['first_round'], ['first_round'], 'first rounds',
    'every request had one round, or none its first',
    'the number of a request''s round was not recorded', $split_low_share, FALSE, $live_rate, $split_rounds, $split_prompts)
