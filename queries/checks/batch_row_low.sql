-- id: batch.row_low
-- title: Rows and sizes of batches are accepted about as often as each other
-- severity: warning
-- certainty: possible
-- requires: rounds
-- causes: batch.row
-- about: The same at a smaller distance: other text may explain it.
-- param split_low_share: float = 0.6, share of the other rounds' rate below which a kind of round lags behind
-- param live_rate: float = 0.3, rate that the lower end of the other rounds exceeds
-- param split_rounds: int = 10, rounds on either side below which nothing is said
-- param split_prompts: int = 3, different prompts on either side below which nothing is said
-- references: sglang#27846
FROM split_verdicts(['row', 'before_last_row', 'eager_batch_size'], ['eager_batch_size', 'graph_batch_size'], 'batches',
    'all batches had the same size and one row',
    'sizes of batches were not recorded', $split_low_share, FALSE, $live_rate, $split_rounds, $split_prompts)
