"""Faults and controls of a draft model of its own, served as STANDALONE."""

from eagletrace.lab.faults.case import DIES, Case

STANDALONE = {"speculative-algorithm": "STANDALONE"}

STANDALONE_FAULTS: tuple[Case, ...] = (
    Case(
        name="standalone-served-as-eagle",
        kind="fault",
        title="a draft model of its own served with --speculative-algorithm EAGLE: it is given wider embeddings",
        case="SGLang's eagle_worker_v2.py init_lm_head",
        expected=("config.algorithm_mismatch",),
        variant="standalone",
        base="standalone-healthy",
        flags={"speculative-algorithm": "EAGLE"},
        unproved=DIES,
    ),
)

STANDALONE_CONTROLS: tuple[Case, ...] = (
    Case(
        name="standalone-healthy",
        kind="control",
        title="a small language model drafts for a larger one",
        case="SGLang's standalone_worker_v2.py",
        variant="standalone",
        flags=STANDALONE,
    ),
)
