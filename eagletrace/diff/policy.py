"""Every threshold of a diff, with its name and its reason."""

from __future__ import annotations

ALPHA = 0.05
"""Chance that two runs of one configuration are called changed, all comparisons together."""

ACCEPT_LENGTH_WEIGHT = 0.5
"""Share of `ALPHA` that the accept length has; the other comparisons share the rest. It is what a difference costs, and
forty others must not hide it."""

POWER = 0.8
"""Chance with which the rounds that are advised show the difference that was seen."""

CONFIDENCE = 0.95
"""Of each interval by itself."""

MIN_CLUSTERS = 3
"""Prompts in each run below which nothing is compared: how much they vary cannot be told."""

MIN_OBSERVATIONS = 10
"""Rounds (or positions) in each run below which nothing is compared."""

SAME_LENGTH = 0.05
"""An accept length whose interval of the difference lies within this is the same for every purpose: 2 % of the tokens
of a round."""

SAME_SHARE = 0.02
"""The same of rates and shares."""

MAX_ROUNDS_ADVISED = 10_000_000
"""Above this a number of rounds is no advice."""

SURE_CAUSE = 0.6
"""Confidence from which a cause that is gained or lost is a change by itself. Causes that are only possible
(`diagnose.policy.CONFIDENCE_POSSIBLE`) come and go with the acceptance of a draft near a threshold."""

ROWS_SHOWN_APART = 8
"""Rows of the batch that are compared one by one; the others together."""

PAIRS_COMPARED = 100
"""Matched requests whose rounds are read for the first divergence, the earliest ones."""

TENSOR_PAIRS = 8
"""Matched requests whose recorded states are compared, the earliest ones."""

STATE_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""Relative error (of the norm of one position's state) from which two states part. The order of sums differs between
batch sizes and backends: float32 keeps seven digits, and twelve layers of the lab's pair stay below 1e-5; bfloat16
rounds by 0.4 % in each operation. A wrong input costs tenths."""

OTHER_STATE_COSINE = 0.9
"""Cosine of two states at the same tokens below which they are not one state in other roundings: runs that differ so
are changed, whatever the acceptance of so few requests shows. Rounding in bfloat16 leaves more than 0.99."""

FIRST_DRAFTS_KEPT = 0.5
"""Share of training's accuracy of first drafts below which acceptance at depth 1 cannot be other text: validation texts
and traffic differ, the draft's vocabulary does not cover either whole, and a token may be sampled. Together they cost
some tenths; a broken draft loses most of it."""

STATE_SIZE = 2.0
"""Times by which the RMS of a slot's states may differ between training and serving. Of one layer it varies by tenths
with the text; layers of a model differ by more."""

TENSORS_NAMED = 4
"""Tensors and departures that a verdict names; the facts have all."""
