"""Faults and controls of EAGLE-1 and EAGLE-2 drafts: `fc` over embedding and hidden state, the target's head."""

from eagletrace.lab.faults.case import DIES, Case
from eagletrace.lab.faults.changes import RenameKeys

EAGLE = {"speculative-algorithm": "EAGLE"}

EAGLE1_FAULTS: tuple[Case, ...] = (
    Case(
        name="eagle1-prefixed-keys",
        kind="fault",
        title="an EAGLE-1 draft whose keys begin with model.; its class puts another model. before every key",
        case="state dicts that were not exported",
        expected=("weights.not_loaded",),
        variant="eagle1",
        base="eagle1-healthy",
        flags=EAGLE,
        changes=(RenameKeys("", "model."),),
    ),
    Case(
        name="eagle1-served-as-eagle3",
        kind="fault",
        title="an EAGLE-1 draft served with --speculative-algorithm EAGLE3: the server ends while it starts",
        case="SGLang's eagle_worker_v2.py init_lm_head",
        expected=("config.algorithm_mismatch",),
        variant="eagle1",
        flags={"speculative-algorithm": "EAGLE3"},
        base="eagle1-healthy",
        unproved=DIES,
    ),
    Case(
        name="eagle1-before-norm",
        kind="fault",
        title="the target hands its last hidden state over before its final norm; the draft was trained on it after",
        case="hidden_states_before_norm, which SGLang's LogitsProcessor prefers where a target's class gives it",
        expected=("fc.norm_mismatch",),
        variant="eagle1",
        base="eagle1-healthy",
        flags=EAGLE,
        runtime="handed-over-before-norm",
    ),
    Case(
        name="eagle1-token-map-without-bytes",
        kind="fault",
        title="a token map without the byte tokens: newlines, dots and brackets cannot be drafted",
        case="FR-Spec maps made on other text",
        expected=("vocab.coverage",),
        variant="eagle1",
        base="eagle1-token-map",
        flags=EAGLE,
        token_map="no_bytes",
    ),
)

EAGLE1_CONTROLS: tuple[Case, ...] = (
    Case(
        name="eagle1-healthy",
        kind="control",
        title="an EAGLE-1 draft as it was trained: embeddings and head are the target's",
        case="drafts of class LlamaForCausalLMEagle",
        variant="eagle1",
        flags=EAGLE,
    ),
    Case(
        name="eagle1-tree",
        kind="control",
        title="the EAGLE-1 draft under a tree of eight nodes, four branches, as EAGLE-2 drafts",
        case="drafts of class LlamaForCausalLMEagle",
        variant="eagle1",
        flags={**EAGLE, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8},
    ),
    Case(
        name="eagle1-no-fc-bias",
        kind="control",
        title="an EAGLE-1 draft trained without a bias of fc; SGLang's class has one, of small random values",
        case="SGLang's llama_eagle.py, EAGLE configurations with bias false",
        variant="eagle1_no_bias",
        flags=EAGLE,
    ),
    Case(
        name="eagle1-token-map",
        kind="control",
        title="a token map of the frequent tokens: the draft has those rows of the target's head",
        case="FR-Spec, --speculative-token-map",
        variant="eagle1",
        flags=EAGLE,
        token_map="default",
    ),
)
