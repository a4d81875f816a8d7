"""Causes in the draft itself: nothing in the engine is wrong."""

from eagletrace.diagnose.causes.model import CauseInfo

_REPLAY = "hidden states of some requests and a replay of the draft as its checkpoint says"

CAUSES = (
    CauseInfo(
        id="draft.undertrained",
        stage="effect",
        title="The draft predicts no better",
        what="The contract is clean, and a faithful replay of the draft reaches no more than what is served.",
        why="The draft has not learned enough, or other text than what is served.",
        shows="The target's token at rank 2 to 10 nearly everywhere; a replay that reproduces the served drafts.",
        fix="Train longer and on text that the target itself generated, of the kind that is served.",
        cases=("speculators#751", "SpecForge#473"),
        loss="partial",
        needs=_REPLAY,
    ),
    CauseInfo(
        id="draft.misaligned",
        stage="effect",
        title="The draft predicts well, one position off",
        what="Training labels were shifted by one: the draft predicts the token before or after the one asked for.",
        why="High accuracy in training, none in serving.",
        shows="A replay whose drafts agree with the target's tokens one position off.",
        fix="Correct the shift of hidden states against labels in the training data, and train again.",
        cases=("speculators#751",),
        needs=f"{_REPLAY}, compared with the target's tokens at neighbouring positions",
    ),
    CauseInfo(
        id="target.mismatch",
        stage="configuration",
        title="The draft was trained for another target than the one served",
        what="Same architecture and sizes, other weights: another version, a fine-tune, another quantisation.",
        why="The draft imitates another model's tokens and reads another model's hidden states.",
        shows="A clean contract and a replay that fails on the served hidden states but works on those of training.",
        fix="Serve the target that the draft was trained for, or train the draft on {target}.",
        cases=("vllm-ascend#5974",),
        effects=("embed.replaced",),
    ),
)
