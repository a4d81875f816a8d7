-- id: batch.row
-- title: Acceptance does not depend on the row in the batch or its size
-- severity: critical
-- certainty: sure
-- requires: rounds
-- causes: batch.row
-- about: Which row a request gets has nothing to do with its text.
-- param split_fails_share: float = 0.33, share of the other rounds' rate below which a kind of round fails
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: sglang#27846
FROM split_verdicts(['row', 'before_last_row', 'eager_batch_size'], ['eager_batch_size', 'graph_batch_size'], 'batches',
    'all batches had the same size and one row',
    'sizes of batches were not recorded', $split_fails_share, TRUE, $live_rate, $split_rounds, $split_prompts)
