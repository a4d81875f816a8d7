"""Causes that stand in the server's arguments, its environment or the draft's configuration."""

from eagletrace.diagnose.causes.model import CauseInfo

CAUSES = (
    CauseInfo(
        id="config.simulated_acceptance",
        stage="configuration",
        title="Acceptance is faked by a setting",
        what="SGLANG_SIMULATE_ACC_LEN makes the verification accept a made-up number of drafts, for benchmarks.",
        why="The verdicts no longer come from the target, so that neither the accept length nor the output means "
        "anything. Real acceptance can be anything.",
        shows="The variable is set in the server's environment.",
        fix="Unset SGLANG_SIMULATE_ACC_LEN (and SGLANG_SIMULATE_ACC_METHOD) in the server's environment and restart.",
    ),
    CauseInfo(
        id="config.algorithm_mismatch",
        stage="configuration",
        title="The server's speculative algorithm does not fit the draft",
        what="The draft is an EAGLE-3 draft, with a fusion layer `fc` over several aux hidden states or a reduced "
        "vocabulary, and the server was started with another algorithm, most often EAGLE. Or it is an EAGLE-1 or "
        "EAGLE-2 draft, and the algorithm is EAGLE3: such a server ends while it starts. Or it is a language model of "
        "its own (STANDALONE), and as EAGLE its embeddings and head are replaced by the target's.",
        why="As EAGLE the target hands over its last hidden state only. It is as wide as the draft's embeddings, so "
        "the width check lets it pass and `fc` never runs; `d2t` is not read, and the trained head is replaced by "
        "the target's. The draft computes noise, without an error or a warning.",
        shows="The algorithm in the server's arguments against the draft's layout; the width of the draft's first "
        "input, which is the hidden size instead of a multiple of it; `fc` that never ran.",
        fix="Restart the server with the --speculative-algorithm of the draft's layout: EAGLE3 for an EAGLE-3 draft, "
        "EAGLE for an EAGLE-1 or EAGLE-2 draft, NEXTN for a layer of multi-token prediction, STANDALONE for a language "
        "model of its own.",
        cases=("sglang#21272", "sglang#27908"),
        effects=(
            "aux.flag", "aux.states", "aux.asked", "aux.width_hidden", "aux.width", "aux.layers", "fc.applied",
            "lm_head.replaced", "embed.replaced", "vocab.d2t_missing", "vocab.d2t_length", "vocab.coverage",
            "numerics.nan_hidden", "graph.width", "fc.norm",
        ),
    ),
)  # fmt: skip
