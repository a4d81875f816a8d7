"""Every threshold and confidence of the diagnosis, with its name and its reason.

The values marked "SQL" are handed to the check that declares a `param` of the same name (in lower case).
"""

from __future__ import annotations

Z = 1.96
"""Two-sided 95 % intervals: one in twenty runs of a draft on the threshold is misjudged, no more."""

MIN_ROUNDS = 30
"""Rounds of one request are not independent (same text, same context), so that fewer than about thirty can come
from a single easy or hard passage whatever their interval says."""

MAX_ROUNDS_ADVISED = 20_000
"""Above this the rate sits on the threshold itself, and more rounds would not be good advice."""

POOR_DEPTH1_RATE = 0.4
"""A draft that works agrees with the target on over half of the first drafted tokens (published EAGLE-3 drafts: 0.65
to 0.85; the lab's small healthy pair: 0.58). Below two fifths a chain gains less than 1.7 tokens per round, about what
the drafting costs; the lab's faults that destroy acceptance stay below 0.3."""

EXCELLENT_DEPTH1_RATE = 0.9
"""When even the lower bound of the depth-1 rate is above this, no fault can be costing much: at most a tenth of
the first drafts is left to win. A violation is then an alarm and not a cause."""

COLLAPSED_DEEPER_RATE = 0.2
"""Conditional rate at depth 2 and deeper. Drafts that are trained on their own hidden states keep their depth-1
rate roughly; even those that are not stay above this."""

OUT_OF_VOCAB_SHARE = 0.25
"""SQL. A target token outside the draft vocabulary can never be drafted, so this share is lost for certain.
Reduced vocabularies are chosen to lose 1 to 5 % on their own kind of text; a quarter is a wrong map or other text."""

FAR_RANK_SHARE = 0.5
"""SQL. Share of first drafts whose target token is not among the draft's ten best. A weak draft has it among the
ten best nearly always; a broken one ranks it at random."""

FLAT_ENTROPY_SHARE = 0.9
"""SQL. Mean entropy of the draft over ln(draft vocabulary). A trained language model stays below a half; only
noise comes near one."""

DEAD_STRETCH_DRAFTS = 20
"""SQL. At the lowest rate of a working draft (0.4), twenty rejections in a row have a chance of 1 in 27,000; on healthy
lab runs of 250 rounds the longest stretch held 3."""

DEAD_STRETCH_TOKENS = 8
"""SQL. One token that is drafted often and wrongly is a weakness of the draft; eight neighbours are a wrong map."""

LIVE_RATE = 0.3
"""SQL. The other drafts must work for a dead stretch to mean anything."""

SAME_TENSOR_DIFFERENCE = 0.05
"""SQL. Relative difference below which two tensors are the same up to rounding or quantisation (bfloat16 rounds
by 0.4 %, 8-bit formats by 1 to 4 %)."""

COUNT_TOLERANCE = 0.01
"""SQL. Difference between the engine's counts and ours that a request cut off at the end of the recording
explains."""

RANK_RATE_SHARE = 0.33
"""SQL. Data-parallel ranks get other requests each, and a router that follows prefixes may send all hard text to one: a
working draft takes 0.9 of the first drafts in easy text and 0.4 in hard. A third of the others' rate, beyond both
intervals, is a rank that fails."""

SPLIT_FAILS_SHARE = 0.33
"""SQL. A kind of round (behind a cached prefix, in a row of the batch, first after a prefill ...) fails where the upper
end of its rate lies below a third of the lower end of the others': as RANK_RATE_SHARE, more than easy and hard text
differ by."""

SPLIT_LOW_SHARE = 0.6
"""SQL. Below this share, with both intervals apart, a kind of round lags behind. Text may do that as well (0.4 against
0.9 in the extreme), so that it is named only where acceptance is lost and nothing surer explains it."""

UPDATE_SHARE = 0.85
"""SQL. An update is recorded with its moment, so that a fall at that very moment needs no wide margin: text that
differs by a seventh from one moment on, beyond both intervals, is no accident."""

SPLIT_ROUNDS = 10
"""SQL. Rounds of a kind below which nothing is said whatever the interval: 0 of 10 against 0.9 is about the least that
a third allows."""

SPLIT_PROMPTS = 3
"""SQL. Different prompts with such a round, and with another: one hard passage is not a kind of round."""

MANY_Z = 3.36
"""SQL. Standard errors of an interval of which the widest of 64 is looked at: all hold together in 95 of 100 cases
(Bonferroni)."""

RECURRENCE_SHARE = 0.5
"""SQL. Rate at depth 2 over that at depth 1. A draft that was trained on its own hidden states keeps its rate (the
lab's pair: 1.04); without that training it keeps about 0.7."""

RMS_JUMP = 8
"""SQL. Root mean square of the draft's input at depth 2 over that at depth 1, either way. The lab's pair: 1.4; a norm
too many or too few changes it by the size of the hidden states, tens and more."""

CONSTANT_SHARE = 0.9
"""SQL. One token in nine of ten first drafts, and nine of ten of those rejected: no text is like that."""

GRAMMAR_SHARE = 0.5
"""SQL. Where a grammar masks most of the rejected drafts, it and not the draft is what rejects."""

SIBLING_COSINE = 0.5
"""SQL. Cosine of two embeddings of one model's versions; that of unrelated ones, or of random ones, is near zero."""

CONFIDENCE_SETTING = 0.99
"""A setting that was read from the server's own environment says that acceptance is faked."""

CONFIDENCE_SURE_LOSS = 0.95
"""A violated load-time fact that is known to destroy acceptance or to kill the engine, and the loss or the death
was seen. Not 1: only a replay proves it."""

CONFIDENCE_SURE_DEGRADED = 0.8
"""The fact is certain, but the acceptance seen is not poor, or this kind of violation costs only a part."""

CONFIDENCE_SURE_UNSEEN = 0.7
"""The fact is certain, but too few rounds were recorded to see what it costs."""

CONFIDENCE_PROVED = 0.99
"""A replay drafts what was served under the fault, and regains acceptance without it."""

CONFIDENCE_REGAINED = 0.75
"""A replay regains acceptance without the fault, but does not draft all that was served: something else differs."""

CONFIDENCE_EXCLUDED = 0.8
"""A replay drafts what was served from the files as they are, and no other change regains acceptance: the draft itself
is left. Not more, because only the changes that are known were tried."""

CONFIDENCE_POSSIBLE = 0.5
"""The fact is often harmless; it is named because acceptance is clearly poor and nothing surer explains it.
Shared evenly when several such facts are found."""

SECOND_CAUSE_FACTOR = 0.9
"""For each further cause: the ones before it already explain a part of the loss."""

SQL_PARAMS: dict[str, float] = {
    "out_of_vocab_share": OUT_OF_VOCAB_SHARE,
    "far_rank_share": FAR_RANK_SHARE,
    "flat_entropy_share": FLAT_ENTROPY_SHARE,
    "dead_stretch_drafts": DEAD_STRETCH_DRAFTS,
    "dead_stretch_tokens": DEAD_STRETCH_TOKENS,
    "live_rate": LIVE_RATE,
    "same_tensor_difference": SAME_TENSOR_DIFFERENCE,
    "count_tolerance": COUNT_TOLERANCE,
    "min_rounds": MIN_ROUNDS,
    "rank_rate_share": RANK_RATE_SHARE,
    "split_fails_share": SPLIT_FAILS_SHARE,
    "split_low_share": SPLIT_LOW_SHARE,
    "update_share": UPDATE_SHARE,
    "split_rounds": SPLIT_ROUNDS,
    "split_prompts": SPLIT_PROMPTS,
    "many_z": MANY_Z,
    "recurrence_share": RECURRENCE_SHARE,
    "rms_jump": RMS_JUMP,
    "constant_share": CONSTANT_SHARE,
    "grammar_share": GRAMMAR_SHARE,
    "sibling_cosine": SIBLING_COSINE,
}
