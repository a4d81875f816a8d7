"""Causes between the target's layers and the draft's fusion layer."""

from eagletrace.diagnose.causes.model import CauseInfo

CAUSES = (
    CauseInfo(
        id="aux.not_captured",
        stage="capture",
        title="The target does not hand over the aux hidden states that the draft needs",
        what="An EAGLE-3 draft takes the hidden states of several target layers side by side. The target captured "
        "none of them, or fewer than the fusion layer takes.",
        why="With the last hidden state alone the width equals that of the embeddings, `fc` is skipped, and the "
        "draft runs on an input that it never saw. With some states missing `fc` fails on the width and the engine "
        "dies at the first request.",
        shows="use_aux_hidden_state read as false; set_eagle3_layers_to_capture never called on the target, or "
        "swallowed by a wrapper around the language model; fewer layers captured than fc takes; hidden states as "
        "wide as one hidden size where a multiple is due.",
        fix='Let {draft}/config.json ask for aux states ("use_aux_hidden_state": true under "eagle_config", with as '
        "many distinct layer ids as the fusion layer takes), and use an engine release whose class for this target "
        "passes set_eagle3_layers_to_capture on to its language model.",
        cases=("sglang#27829", "SpecForge#310", "the Kimi-K2.5 story: 7168 wide where 21504 was due"),
        effects=("aux.width_hidden", "aux.width", "aux.layers", "fc.applied", "graph.width", "numerics.nan_hidden"),
    ),
    CauseInfo(
        id="aux.layers_mismatch",
        stage="capture",
        title="Aux hidden states come from other layers than the draft was trained on",
        what="The layers captured are not those that the draft's configuration names: the ids stand under a key "
        "that the engine does not read, are off by one (output of a layer against input of the next), or are in "
        "another order.",
        why="Each slot of the fusion layer was trained on one layer. Neighbouring layers resemble each other, so "
        "that a small shift costs a part of the acceptance and a large one nearly all of it; nothing fails.",
        shows="The ids in the configuration, wherever they stand, against the layers hooked in the target. With one "
        "set of ids that is itself wrong, only a replay with other layers shows it.",
        fix='Write the ids where SGLang reads them, {draft}/config.json: "eagle_config": '
        '{"eagle_aux_hidden_state_layer_ids": [...]}. SGLang takes an id as the output of that layer: to capture '
        "the input of layer k (what vLLM and speculators call k) write k - 1. DeepSeek and Kimi-K2.5 targets (from "
        "0.5.13 on) take ids as they are, unless the first is 1: there write k. A gpt-oss (from 0.5.17 on) takes them "
        "so if the largest is its number of layers.",
        cases=("tokenspeed#526", "sglang#25454", "sglang#32334", "SpecForge#240"),
        loss="partial",
    ),
    CauseInfo(
        id="aux.width_mismatch",
        stage="capture",
        title="The hidden state handed over has another width than the fusion layer takes",
        what="The width is neither that of all aux states nor that of one, and nothing more upstream explains it.",
        why="The fusion layer fails on it, or is skipped because the width happens to equal that of the embeddings.",
        shows="Width of the target's hidden state and of the draft's first input against fc.in_features.",
        fix="Check that hidden_size (target_hidden_size) and the number of aux layers in {draft}/config.json are the "
        "ones of the target at {target}; a draft for another target must be exchanged.",
        cases=("sglang#32334",),
        effects=("fc.applied", "graph.width", "numerics.nan_hidden"),
    ),
    CauseInfo(
        id="fc.bypassed",
        stage="capture",
        title="The fusion layer was not applied though its input was there",
        what="The draft got hidden states of full width where depth 1 is drafted, and `fc` did not run.",
        why="SGLang decides by width: `fc` runs only if the hidden state is not as wide as the embeddings. Where the "
        "concatenated aux states are exactly that wide, they enter the decoder layer unfused.",
        shows="`fc` never called in the first draft extend, with an input of the due width.",
        fix="Use a draft whose fused input is not as wide as its embeddings, or an engine release that does not "
        "decide by width.",
        cases=("sglang#21272",),
    ),
    CauseInfo(
        id="fc.norm_mismatch",
        stage="capture",
        title="A norm before the fusion layer is ignored or applied wrongly",
        what="The draft was trained with a norm in front of `fc` (norm_before_fc, fc_norm, one norm for each aux "
        "state), and the engine leaves it out, or the other way round. For an EAGLE-1 or EAGLE-2 draft that norm is "
        "the target's final one: it takes the target's last hidden state after it. A layer of multi-token prediction "
        "has two norms before `eh_proj`, one of the embedding and one of the hidden state.",
        why="The fusion layer gets inputs at another scale than in training; large channels of late layers drown "
        "the others. Acceptance drops at depth 1 and the rest follows.",
        shows="Norm weights in the checkpoint that landed nowhere; RMS at the input of `fc` for each slot; a replay "
        "with and without the norm.",
        fix="Use an engine release that knows the flag (SGLang: norm_before_fc from 0.5.17, fc_norm from 0.5.12), and "
        "set it in {draft}/config.json as in training; for an EAGLE-1 draft one whose target class hands the normed "
        "state over.",
        cases=("vllm#38111", "sglang#32334"),
        loss="partial",
        effects=("weights.unused_keys", "weights.neutral"),
    ),
)
