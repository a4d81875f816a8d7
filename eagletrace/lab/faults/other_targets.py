"""Targets of other classes than Llama and Kimi-K2.5: Qwen2, Qwen3 and gpt-oss, all of them the pair's Llama rewritten.

Each class has its own `set_eagle3_layers_to_capture`; the drafts are those of the pair, unchanged.
"""

from eagletrace.lab.faults.case import Case
from eagletrace.lab.faults.changes import ShiftLayerIds
from eagletrace.lab.faults.target_classes import AsGptOss, AsQwen2, AsQwen3

GPT_OSS = {"disable-hybrid-swa-memory": True}
"""The cache of sliding windows is asked for by the class, though no layer of this target has one."""

OTHER_TARGET_FAULTS: tuple[Case, ...] = (
    Case(
        name="qwen2-layer-ids-shifted",
        kind="fault",
        title="the aux layer ids of a Qwen2 target are three layers too low",
        case="sglang#32334",
        expected=("aux.layers_mismatch",),
        variant="other_layers",
        base="qwen2-healthy",
        changes=(AsQwen2(), ShiftLayerIds(-3)),
    ),
    Case(
        name="qwen3-layer-ids-shifted",
        kind="fault",
        title="the aux layer ids of a Qwen3 target are three layers too low",
        case="sglang#32334",
        expected=("aux.layers_mismatch",),
        variant="other_layers",
        base="qwen3-healthy",
        changes=(AsQwen3(), ShiftLayerIds(-3)),
    ),
    Case(
        name="gpt-oss-layer-ids-as-inputs",
        kind="fault",
        title="aux layer ids written as inputs of layers, which a gpt-oss takes so only if one is its number of layers",
        case="SGLang's gpt_oss.py from 0.5.17 on",
        expected=("aux.layers_mismatch",),
        variant="other_layers",
        base="gpt-oss-healthy",
        flags=GPT_OSS,
        changes=(AsGptOss(), ShiftLayerIds(1)),
    ),
)

OTHER_TARGET_CONTROLS: tuple[Case, ...] = (
    Case(
        name="qwen2-healthy",
        kind="control",
        title="a Qwen2 target: its class reads layer ids as outputs",
        case="drafts of Qwen2 targets",
        variant="other_layers",
        changes=(AsQwen2(),),
    ),
    Case(
        name="qwen3-healthy",
        kind="control",
        title="a Qwen3 target, whose heads have norms and are wider than the draft's",
        case="drafts of Qwen3 targets",
        variant="other_layers",
        changes=(AsQwen3(),),
    ),
    Case(
        name="gpt-oss-healthy",
        kind="control",
        title="a gpt-oss target, with experts and sinks",
        case="drafts of gpt-oss targets",
        variant="other_layers",
        flags=GPT_OSS,
        changes=(AsGptOss(),),
    ),
)
