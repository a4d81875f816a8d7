"""Faults and controls of multi-token prediction: a layer behind those of a DeepSeek-V3, served as NEXTN."""

from eagletrace.lab.faults.case import DIES, Case
from eagletrace.lab.faults.changes import SetConfig
from eagletrace.lab.faults.mtp_files import ALONE, ExchangeTensors, LanguageModelAlone, LayerInTarget

NEXTN = {"speculative-algorithm": "NEXTN"}
NOTHING_ELSE = {
    "speculative-draft-model-path": None, "speculative-num-steps": None, "speculative-eagle-topk": None,
    "speculative-num-draft-tokens": None,
}  # fmt: skip
"""SGLang takes the target's path, and for a DeepSeek-V3 a chain of three drafts."""
ALONE_IN_FOLDER = (LanguageModelAlone(),)
VARIANT = "multi_token"
FAMILY = "drafts of class DeepseekV3ForCausalLMNextN"

MTP_FAULTS: tuple[Case, ...] = (
    Case(
        name="mtp-layer-number",
        kind="fault",
        title="an exported layer with the config.json of the whole model: its class looks for it behind 10 layers",
        case="SGLang's deepseek_weight_loader.py _initialize_nextn_conf",
        expected=("weights.not_loaded",),
        pair="kimi",
        variant=VARIANT,
        base="mtp-healthy",
        flags=NEXTN,
        changes=(*ALONE_IN_FOLDER, SetConfig("num_hidden_layers", 10)),
    ),
    Case(
        name="mtp-norms-exchanged",
        kind="fault",
        title="the norms of embedding and hidden state are saved under each other's name",
        case="conversions of trainers that number them, such as Megatron's",
        expected=("fc.norm_mismatch",),
        pair="kimi",
        variant=VARIANT,
        base="mtp-healthy",
        flags=NEXTN,
        changes=(*ALONE_IN_FOLDER, ExchangeTensors(f"{ALONE}enorm.weight", f"{ALONE}hnorm.weight")),
    ),
    Case(
        name="mtp-served-as-eagle3",
        kind="fault",
        title="a layer of multi-token prediction served with --speculative-algorithm EAGLE3",
        case="SGLang's eagle_worker_v2.py init_lm_head",
        expected=("config.algorithm_mismatch",),
        pair="kimi",
        variant=VARIANT,
        base="mtp-healthy",
        flags={"speculative-algorithm": "EAGLE3"},
        changes=ALONE_IN_FOLDER,
        unproved=DIES,
    ),
)

MTP_CONTROLS: tuple[Case, ...] = (
    Case(
        name="mtp-healthy",
        kind="control",
        title="a layer of multi-token prediction, exported alone, behind a DeepSeek-V3",
        case=FAMILY,
        pair="kimi",
        variant=VARIANT,
        flags=NEXTN,
        changes=ALONE_IN_FOLDER,
    ),
    Case(
        name="mtp-in-target",
        kind="control",
        title="the layer in the target's own checkpoint, and nothing asked for but the algorithm",
        case=FAMILY,
        pair="kimi",
        variant=VARIANT,
        base="mtp-healthy",
        flags={**NEXTN, **NOTHING_ELSE},
        changes=(*ALONE_IN_FOLDER, LayerInTarget()),
    ),
    Case(
        name="mtp-tree",
        kind="control",
        title="the layer under a tree of eight nodes, four branches",
        case=FAMILY,
        pair="kimi",
        variant=VARIANT,
        flags={**NEXTN, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8},
        changes=ALONE_IN_FOLDER,
    ),
)
