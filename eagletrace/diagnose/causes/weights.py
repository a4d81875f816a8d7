"""Causes in how the draft's tensors reach its parameters."""

from eagletrace.diagnose.causes.model import CauseInfo

_EFFECTS = ("weights.nan_unwritten", "numerics.nan_hidden")

CAUSES = (
    CauseInfo(
        id="weights.not_loaded",
        stage="wiring",
        title="Tensors of the checkpoint landed nowhere, and their parameters were never filled",
        what="The loader did not know the names in the checkpoint (layers.0.* where it expects midlayer.*, a prefix "
        "of the trainer) and dropped them without a word; or the configuration counts fewer decoder layers than the "
        "file has, and the rest was never built.",
        why="The parameters keep whatever the memory held, or zeros. A decoder layer of noise predicts nothing.",
        shows="Checkpoint tensors that wrote into no parameter, of the shapes of parameters that no tensor wrote.",
        fix="Rename the tensors in {draft}/model.safetensors to the names that the engine expects (for SGLang up to "
        "0.5.11: layers.0.* to midlayer.*; no further prefix), or use a release that renames them.",
        cases=("sglang#35797", "vllm#43459", "SGLang up to 0.5.11 with layers.0.*"),
        effects=(*_EFFECTS, "weights.unused_keys", "weights.neutral"),
    ),
    CauseInfo(
        id="weights.missing",
        stage="wiring",
        title="A parameter of the draft has no tensor in the checkpoint",
        what="The checkpoint has no tensor for a parameter, or for a part of a fused one (v_proj of qkv_proj), and "
        "the parameter is not shared with the target.",
        why="The engine does not look for gaps: the parameter, or its part, keeps what the memory held. Without a "
        "head the drafted tokens are arbitrary, and NaN is possible.",
        shows="Parameters with fewer elements written than they have, not shared; NaN in them; RMS like no trained "
        "parameter's.",
        fix="Export the draft again with all its tensors (an EAGLE-3 draft has its own lm_head; its embeddings may be "
        "left out, they are taken from the target), or copy the missing ones from the trainer's checkpoint into "
        "{draft}.",
        cases=("sglang#27829",),
        effects=_EFFECTS,
    ),
    CauseInfo(
        id="weights.changed",
        stage="wiring",
        title="Weights changed while serving",
        what="The weights of draft or target were updated at run time, or only those of one of the two.",
        why="A draft imitates one target. After an update of one of them it predicts another model's tokens.",
        shows="Checksums over time, joined with acceptance before and after.",
        fix="Update draft and target together, and reload the draft after each update of the target.",
        cases=("miles#1926", "sglang#31674", "sglang#27718"),
        effects=("weights.one_sided", "weights.step"),
    ),
    CauseInfo(
        id="weights.quantization",
        stage="wiring",
        title="The draft's weights were decoded wrongly",
        what="Scales of a quantised draft are not applied, or a draft of full precision inherits the target's "
        "quantisation.",
        why="All values are off by large factors; acceptance is low from the first token on.",
        shows="Unused *_scale keys; a dtype that is not the file's; RMS of parameters against that of the file.",
        fix="Start the server with --speculative-draft-model-quantization set to what the draft's file is "
        "(unquant for full precision).",
        cases=("sglang#35797",),
        effects=("weights.unused_keys", "weights.neutral"),
    ),
)
