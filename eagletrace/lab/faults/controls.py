"""The controls: what looks guilty and costs nothing, and the healthy pair."""

from eagletrace.lab.faults.case import Case
from eagletrace.lab.faults.changes import (
    AddRandomTensor,
    DefaultLayerIdsAtTop,
    DropKeys,
    InvertMask,
    RenameKeys,
    RoomForAbsoluteIds,
)

CONTROLS: tuple[Case, ...] = (
    Case(name="healthy", kind="control", title="the pair as it was trained", case=""),
    Case(
        name="healthy-0.5.9",
        kind="control",
        title="the pair as it was trained, on SGLang 0.5.9",
        case="sglang#25015",
        engine="0.5.9",
        worker="v1",
    ),
    Case(
        name="healthy-0.5.9-v2",
        kind="control",
        title="the pair as it was trained, under 0.5.9's overlapped worker",
        case="sglang#25015",
        engine="0.5.9",
        worker="v2",
    ),
    Case(
        name="layer-keys-0.5.23",
        kind="control",
        title="decoder layer saved as layers.0.*, which SGLang 0.5.23 reads",
        case="SGLang from 0.5.13 on",
        changes=(RenameKeys("midlayer.", "layers.0."),),
    ),
    Case(
        name="t2d-disagrees",
        kind="control",
        title="t2d says the opposite of d2t; the engine does not read it",
        case="SGLang's load_weights skips t2d",
        changes=(InvertMask("t2d"),),
    ),
    Case(
        name="random-embed",
        kind="control",
        title="random embed_tokens in the file; the engine shares the target's",
        case="vllm#50158",
        changes=(AddRandomTensor("embed_tokens.weight", ("vocab_size", "hidden_size"), scale=0.02),),
    ),
    Case(
        name="extra-key",
        kind="control",
        title="a tensor in the file that no parameter needs",
        case="verifier_lm_head in checkpoints of the speculators library",
        changes=(AddRandomTensor("verifier_lm_head.weight", ("draft_vocab_size", "hidden_size"), scale=0.02),),
    ),
    Case(
        name="full-vocab",
        kind="control",
        title="a full draft vocabulary, which needs no d2t",
        case="drafts trained without a reduced vocabulary",
        variant="full_vocab",
    ),
    Case(
        name="padded-vocabulary",
        kind="control",
        title="a target vocabulary padded past the tokenizer's, and a smaller draft vocabulary",
        case="vocabularies padded to a multiple of 64",
        changes=(RoomForAbsoluteIds(),),
    ),
    Case(
        name="no-final-norm",
        kind="control",
        title="norm.weight is not in the file; the engine initialises it to ones",
        case="checkpoints whose final norm was folded into lm_head",
        changes=(DropKeys(r"norm\.weight"),),
    ),
    Case(
        name="unread-ids-equal-defaults",
        kind="control",
        title="aux layer ids under a key that the engine does not read, equal to its defaults",
        case="top-level eagle_aux_hidden_state_layer_ids",
        changes=(DefaultLayerIdsAtTop(),),
    ),
    Case(
        name="other-layers",
        kind="control",
        title="aux layers other than the defaults, asked for where the engine reads it",
        case="eagle_config.eagle_aux_hidden_state_layer_ids",
        variant="other_layers",
    ),
)
