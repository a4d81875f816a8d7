"""Faults and controls of an EAGLE-3 draft with the settings of EAGLE-3.1: two decoder layers, four aux states, a norm
of each of them, and the normed state fed back.
"""

from eagletrace.lab.faults.case import DIES, Case
from eagletrace.lab.faults.changes import LAYER_IDS, DropConfig, SetConfig

EAGLE31_FAULTS: tuple[Case, ...] = (
    Case(
        name="eagle31-second-layer-unbuilt",
        kind="fault",
        title="a draft of two decoder layers whose config says one: the second layer lands nowhere",
        case="SGLang's llama_eagle3.py builds num_hidden_layers layers, and training templates say 1",
        expected=("weights.not_loaded",),
        variant="eagle31",
        base="eagle31-healthy",
        changes=(SetConfig("num_hidden_layers", 1),),
    ),
    Case(
        name="eagle31-fc-norm-unset",
        kind="fault",
        title="a draft trained with a norm of each aux state, served without the flag: fc_norm.* is left over",
        case="sglang#32334",
        expected=("fc.norm_mismatch",),
        variant="eagle31",
        base="eagle31-healthy",
        changes=(DropConfig("fc_norm"),),
    ),
    Case(
        name="eagle31-three-of-four-layers",
        kind="fault",
        title="three aux layer ids where the fusion layer takes four states: the first request ends the server",
        case="num_aux_hidden_states beside eagle_aux_hidden_state_layer_ids",
        expected=("aux.not_captured",),
        variant="eagle31",
        base="eagle31-healthy",
        changes=(SetConfig(f"eagle_config.{LAYER_IDS}", [1, 4, 7]),),
        unproved=DIES,
    ),
)

EAGLE31_CONTROLS: tuple[Case, ...] = (
    Case(
        name="eagle31-healthy",
        kind="control",
        title="two decoder layers, four aux states with a norm each, the normed state fed back",
        case="SGLang's llama_eagle3.py from 0.5.12 on",
        variant="eagle31",
    ),
)
