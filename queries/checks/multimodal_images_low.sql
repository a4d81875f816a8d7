-- id: multimodal.images_low
-- title: Requests with images are accepted about as often as others
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: multimodal.embeds
-- about: The same at a smaller distance: other text may explain it.
-- param split_low_share: float = 0.6, share of the other rounds' rate below which a kind of round lags behind
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: sglang#19730
FROM split_verdicts(['image'], ['image'], 'requests with images',
    'no request had images, or every one',
    'whether requests had images was not recorded', $split_low_share, FALSE, $live_rate, $split_rounds, $split_prompts)
