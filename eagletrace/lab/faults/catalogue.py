"""The faults: each loses a significant share of the accept length, or kills the server.

To add one, add a `Case`: `eagletrace lab run --fault NAME` and the matrix take it from here.
"""

from eagletrace.lab.faults.case import Case
from eagletrace.lab.faults.changes import (
    AddToTail,
    D2tAsAbsoluteIds,
    DropKeys,
    FillTensor,
    LayerIdsAtTop,
    RenameKeys,
    RoomForAbsoluteIds,
    SetConfig,
    ShiftLayerIds,
)

WEIGHTS: tuple[Case, ...] = (
    Case(
        name="layer-keys-0.5.9",
        kind="fault",
        title="decoder layer saved as layers.0.*, which SGLang 0.5.9 drops silently",
        case="SGLang up to 0.5.11, checkpoints of the speculators library",
        expected=("weights.not_loaded",),
        engine="0.5.9",
        worker="v1",
        changes=(RenameKeys("midlayer.", "layers.0."),),
    ),
    Case(
        name="layer-keys-0.5.9-v2",
        kind="fault",
        title="decoder layer saved as layers.0.*, under 0.5.9's overlapped worker",
        case="SGLang up to 0.5.11, checkpoints of the speculators library",
        expected=("weights.not_loaded",),
        engine="0.5.9",
        worker="v2",
        changes=(RenameKeys("midlayer.", "layers.0."),),
    ),
    Case(
        name="unknown-prefix",
        kind="fault",
        title="decoder layer saved under a prefix that the engine does not know",
        case="sglang#35797",
        expected=("weights.not_loaded",),
        changes=(RenameKeys("midlayer.", "draft_model.decoder.0."),),
    ),
    Case(
        name="no-lm-head",
        kind="fault",
        title="no lm_head in the checkpoint",
        case="sglang#27829",
        expected=("weights.missing",),
        changes=(DropKeys(r"lm_head\.weight"),),
    ),
    Case(
        name="no-v-proj",
        kind="fault",
        title="one third of the fused qkv_proj has no tensor: v_proj is missing",
        case="vllm#43459",
        expected=("weights.missing",),
        changes=(DropKeys(r".*\.v_proj\.weight"),),
    ),
)

VOCABULARY: tuple[Case, ...] = (
    Case(
        name="d2t-absolute",
        kind="fault",
        title="d2t holds target ids where the engine reads offsets",
        case="vllm#18909",
        expected=("vocab.d2t_encoding",),
        changes=(RoomForAbsoluteIds(), D2tAsAbsoluteIds()),
    ),
    Case(
        name="d2t-zero",
        kind="fault",
        title="d2t is all zero: draft ids are taken for target ids",
        case="SpecForge#602",
        expected=("vocab.d2t_missing",),
        changes=(FillTensor("d2t", 0),),
    ),
    Case(
        name="d2t-missing",
        kind="fault",
        title="a reduced draft vocabulary without d2t",
        case="SpecForge#602",
        expected=("vocab.d2t_missing",),
        changes=(DropKeys("d2t"),),
    ),
    Case(
        name="d2t-partly-wrong",
        kind="fault",
        title="two thirds of d2t are one too low, as if a token was inserted after it was made",
        case="vllm#18909",
        expected=("vocab.d2t_mismatch",),
        changes=(AddToTail("d2t", start=1 / 3, amount=-1),),
    ),
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
        changes=(ShiftLayerIds(-3),),
    ),
    Case(
        name="layer-ids-unread-key",
        kind="fault",
        title="the aux layer ids stand at the top of the config, where the engine does not read them",
        case="tokenspeed#526",
        expected=("aux.layers_mismatch",),
        variant="other_layers",
        changes=(LayerIdsAtTop(),),
    ),
    Case(
        name="target-too-shallow",
        kind="fault",
        title="a target of six layers: two of the three default aux layers are the same",
        case="SGLang's default layers [2, n // 2, n - 3]",
        expected=("aux.not_captured",),
        changes=(SetConfig("num_hidden_layers", 6, side="target"),),
    ),
)

COMPOUND: tuple[Case, ...] = (
    Case(
        name="layer-keys-and-no-aux",
        kind="fault",
        title="two faults of the story at once: layers.0.* keys on 0.5.9, and no aux states",
        case="the Kimi-K2.5 story",
        expected=("aux.not_captured", "weights.not_loaded"),
        engine="0.5.9",
        worker="v1",
        changes=(RenameKeys("midlayer.", "layers.0."), SetConfig("eagle_config.use_aux_hidden_state", False)),
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

FAULTS: tuple[Case, ...] = (*WEIGHTS, *VOCABULARY, *CONFIGURATION, *AUX_STATES, *SHARING, *COMPOUND)
