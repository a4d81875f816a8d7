-- id: multimodal.images
-- title: Requests with images are accepted as well as others
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: multimodal.embeds
-- about: Text about images is not harder to draft; without their embeddings the draft does not see them.
-- param split_fails_share: float = 0.33, share of the other rounds' rate below which a kind of round fails
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: sglang#19730
FROM split_verdicts(['image'], ['image'], 'requests with images',
    'no request had images, or every one',
    'whether requests had images was not recorded', $split_fails_share, TRUE, $live_rate, $split_rounds, $split_prompts)
