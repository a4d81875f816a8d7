"""Faults of training, and of the target that a draft is served with."""

from eagletrace.lab.faults.case import RETRAIN, Case
from eagletrace.lab.faults.rewrites import FreezeEmbeddings, RotateTarget

TRAINING: tuple[Case, ...] = (
    Case(
        name="undertrained",
        kind="fault",
        title="a draft that was trained for a few steps",
        case="speculators#751",
        expected=("draft.undertrained",),
        variant="few_steps",
        unproved=RETRAIN,
    ),
    Case(
        name="labels-shifted",
        kind="fault",
        title="a draft whose labels were one position too late in training",
        case="SpecForge#473",
        expected=("draft.misaligned",),
        variant="late_labels",
        unproved=RETRAIN,
    ),
    Case(
        name="vocabulary-without-bytes",
        kind="fault",
        title="a draft vocabulary without the byte tokens: newlines, dots and brackets cannot be drafted",
        case="SpecForge#602",
        expected=("vocab.coverage",),
        variant="no_bytes",
        unproved=RETRAIN,
    ),
)

TARGET: tuple[Case, ...] = (
    Case(
        name="draft-of-another-target",
        kind="fault",
        title="a draft trained for a target of the same architecture and another seed",
        case="vllm-ascend#5974",
        expected=("target.mismatch",),
        variant="other_target",
        unproved=RETRAIN,
    ),
    Case(
        name="target-rotated",
        kind="fault",
        title="the target's residual stream rotated by an orthogonal matrix, its output unchanged",
        case="vllm-ascend#5974",
        expected=("basis.rotated",),
        changes=(FreezeEmbeddings(), RotateTarget()),
    ),
)
