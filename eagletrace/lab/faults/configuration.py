"""Faults of configuration and flags: algorithm, aux states, norms, rotary embedding, sharing."""

from eagletrace.lab.faults.case import DIES, Case
from eagletrace.lab.faults.changes import (
    DropConfig,
    LayerIdsAtTop,
    SetConfig,
    ShiftLayerIds,
)
from eagletrace.lab.faults.controls import FIVE_STEPS
from eagletrace.lab.faults.rewrites import (
    ReverseLayerIds,
)

CONFIGURATION: tuple[Case, ...] = (
    Case(
        name="eagle3-served-as-eagle",
        kind="fault",
        title="an EAGLE-3 draft served with --speculative-algorithm EAGLE",
        case="sglang#21272",
        expected=("config.algorithm_mismatch", "fc.bypassed"),
        flags={"speculative-algorithm": "EAGLE"},
    ),
    Case(
        name="simulated-acceptance",
        kind="fault",
        title="SGLANG_SIMULATE_ACC_LEN fakes the acceptance",
        case="SGLang's SGLANG_SIMULATE_ACC_LEN",
        expected=("config.simulated_acceptance",),
        env={"SGLANG_SIMULATE_ACC_LEN": "3"},
        unproved="acceptance is made up, and no draft is at fault",
    ),
)

AUX_STATES: tuple[Case, ...] = (
    Case(
        name="use-aux-false",
        kind="fault",
        title="use_aux_hidden_state is false, the draft needs aux states",
        case="sglang#21272",
        expected=("aux.not_captured", "fc.bypassed"),
        changes=(SetConfig("eagle_config.use_aux_hidden_state", False),),
    ),
    Case(
        name="layer-ids-shifted",
        kind="fault",
        title="the aux layer ids are three layers too low",
        case="sglang#32334",
        expected=("aux.layers_mismatch",),
        variant="other_layers",
        base="other-layers",
        changes=(ShiftLayerIds(-3),),
    ),
    Case(
        name="layer-ids-unread-key",
        kind="fault",
        title="the aux layer ids stand at the top of the config, where the engine does not read them",
        case="tokenspeed#526",
        expected=("aux.layers_mismatch",),
        variant="other_layers",
        base="other-layers",
        changes=(LayerIdsAtTop(),),
    ),
    Case(
        name="target-too-shallow",
        kind="fault",
        title="a target of six layers: two of the three default aux layers are the same",
        case="SGLang's default layers [2, n // 2, n - 3]",
        expected=("aux.not_captured",),
        changes=(SetConfig("num_hidden_layers", 6, side="target"),),
        unproved=DIES,
    ),
    Case(
        name="aux-slots-in-another-order",
        kind="fault",
        title="fc was trained on the states in descending order of layers; the engine's order is ascending",
        case="SpecForge#240",
        expected=("aux.layers_mismatch",),
        variant="other_layers",
        base="other-layers",
        changes=(ReverseLayerIds(slots=True),),
    ),
)

NORMS: tuple[Case, ...] = (
    Case(
        name="norm-before-fc-untrained",
        kind="fault",
        title="norm_before_fc is set, the draft was trained without it",
        case="vllm#38111",
        expected=("fc.norm_mismatch",),
        changes=(SetConfig("norm_before_fc", True),),
    ),
    Case(
        name="norm-before-fc-unset",
        kind="fault",
        title="a draft trained with a norm before fc, served without the flag: input_norm.weight is left over",
        case="vllm#38111",
        expected=("fc.norm_mismatch",),
        variant="normed_states",
        base="norm-before-fc",
        changes=(DropConfig("norm_before_fc"),),
    ),
    Case(
        name="fc-norm-untrained",
        kind="fault",
        title="fc_norm is set (a norm for each aux state), the draft was trained without it",
        case="sglang#32334",
        expected=("fc.norm_mismatch",),
        changes=(SetConfig("fc_norm", True),),
    ),
    Case(
        name="norm-output-unset",
        kind="fault",
        title="a draft trained on its normed hidden state, served without norm_output",
        case="vllm#47448",
        expected=("recurrence.hidden",),
        variant="normed_feedback",
        base="norm-output",
        changes=(DropConfig("norm_output"),),
    ),
)

ROTARY: tuple[Case, ...] = (
    Case(
        name="rope-theta",
        kind="fault",
        title="rope_theta is 100 in the draft's config, it was trained with 10,000",
        case="TensorRT-LLM#19036",
        expected=("rope.mismatch",),
        changes=(SetConfig("rope_theta", 100.0),),
    ),
    Case(
        name="rope-theta-of-the-target",
        kind="fault",
        title="the target's rope_theta in the draft's config, the draft was trained with one of its own",
        case="TensorRT-LLM#19036",
        expected=("rope.mismatch",),
        variant="early_layers",
        flags=FIVE_STEPS,
        base="rope-theta-of-its-own",
        changes=(SetConfig("rope_theta", 10000.0),),
    ),
    Case(
        name="rope-scaling",
        kind="fault",
        title="the draft's config scales its positions by 32, it was trained without scaling",
        case="TensorRT-LLM#19036",
        expected=("rope.mismatch",),
        variant="early_layers",
        flags=FIVE_STEPS,
        base="rope-theta-of-its-own",
        changes=(SetConfig("rope_scaling", {"rope_type": "linear", "type": "linear", "factor": 32.0}),),
    ),
    Case(
        name="rope-interleaved",
        kind="fault",
        title="rotary pairs are neighbours (GPT-J), the draft was trained on halves (NeoX)",
        case="TensorRT-LLM#19036",
        expected=("rope.mismatch",),
        flags=FIVE_STEPS,
        base="five-steps",
        changes=(SetConfig("rope_is_neox_style", False),),
    ),
)

SHARING: tuple[Case, ...] = (
    Case(
        name="tied-embeddings",
        kind="fault",
        title="tie_word_embeddings is true: the trained head lands nowhere, the target's embedding is the head",
        case="SpecForge#478",
        expected=("weights.not_loaded", "lm_head.replaced"),
        changes=(SetConfig("tie_word_embeddings", True),),
    ),
    Case(
        name="head-overwritten",
        kind="fault",
        title="draft_vocab_size is null and there is no d2t: the target's head replaces the trained one",
        case="SpecForge#478",
        expected=("lm_head.replaced",),
        variant="full_vocab",
        base="full-vocab",
        changes=(SetConfig("draft_vocab_size", None),),
    ),
    Case(
        name="own-embeddings-replaced",
        kind="fault",
        title="a draft trained on embeddings of its own, which the engine replaces by the target's",
        case="vllm#28549",
        expected=("embed.mismatch",),
        variant="own_embeddings",
    ),
)
