"""Two faults at once, from different stages: neither may hide the other."""

from eagletrace.lab.faults.case import Case
from eagletrace.lab.faults.changes import (
    DropKeys,
    RenameKeys,
    SetConfig,
    ShiftLayerIds,
)
from eagletrace.lab.faults.controls import FIVE_STEPS
from eagletrace.lab.faults.rewrites import (
    DuplicatesInD2t,
    NextTokensInD2t,
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
    Case(
        name="d2t-shifted-and-rope",
        kind="fault",
        title="two faults at once: a map shifted by a row, and another rope_theta",
        case="sglang#32334",
        expected=("vocab.d2t_mismatch", "rope.mismatch"),
        changes=(NextTokensInD2t(), SetConfig("rope_theta", 100.0)),
    ),
    Case(
        name="unknown-prefix-and-no-aux",
        kind="fault",
        title="two faults at once: decoder keys that the engine does not know, and no aux states",
        case="sglang#32334",
        expected=("aux.not_captured", "weights.not_loaded"),
        changes=(
            RenameKeys("midlayer.", "draft_model.decoder.0."),
            SetConfig("eagle_config.use_aux_hidden_state", False),
        ),
    ),
    Case(
        name="layer-ids-and-rope",
        kind="fault",
        title="two faults at once: aux layers three too low, and another rope_theta",
        case="sglang#32334",
        expected=("aux.layers_mismatch", "rope.mismatch"),
        variant="other_layers",
        base="other-layers",
        changes=(ShiftLayerIds(-3), SetConfig("rope_theta", 100.0)),
    ),
    Case(
        name="no-gate-proj-and-d2t-missing",
        kind="fault",
        title="two faults at once: gate_proj is missing, and d2t is",
        case="sglang#35797",
        expected=("weights.missing", "vocab.d2t_missing"),
        changes=(DropKeys(r".*\.gate_proj\.weight"), DropKeys("d2t")),
        proof_draft="default",
    ),
    Case(
        name="d2t-duplicates-and-residual",
        kind="fault",
        title="two faults at once: duplicates in d2t, and a hidden state without its residual fed back",
        case="sglang#32334",
        expected=("vocab.d2t_mismatch", "recurrence.hidden"),
        changes=(DuplicatesInD2t(),),
        flags=FIVE_STEPS,
        base="five-steps",
        runtime="difference-fed-back",
    ),
)
