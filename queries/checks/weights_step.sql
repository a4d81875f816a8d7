-- id: weights.step
-- title: Acceptance does not fall at one moment for good
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: weights.changed
-- about: Weights that are changed in place leave no event. From one moment on rounds fail, whatever they are; other
--        text from that moment on would have to be far harder.
-- param split_fails_share: float = 0.33, share of the other rounds' rate below which a kind of round fails
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: miles#1926
FROM split_verdicts(['late'], ['late'], 'the course of time',
    'acceptance did not fall at any moment',
    'when rounds ran was not recorded', $split_fails_share, TRUE, $live_rate, $split_rounds, $split_prompts)
