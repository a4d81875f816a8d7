"""The catalogue of faults and controls of the lab, as data, and what writes their checkpoints."""

from __future__ import annotations

from eagletrace.errors import UnknownNameError
from eagletrace.lab.faults.case import Case, Load, Prepared, Update, draft_folder, materialize, prepare, variant_beside
from eagletrace.lab.faults.catalogue import FAULTS
from eagletrace.lab.faults.controls import CONTROLS as LLAMA_CONTROLS
from eagletrace.lab.faults.eagle1 import EAGLE1_CONTROLS
from eagletrace.lab.faults.eagle31 import EAGLE31_CONTROLS
from eagletrace.lab.faults.kimi import KIMI_CONTROLS
from eagletrace.lab.faults.mtp import MTP_CONTROLS
from eagletrace.lab.faults.other_targets import OTHER_TARGET_CONTROLS
from eagletrace.lab.faults.standalone import STANDALONE_CONTROLS

CONTROLS = (
    *LLAMA_CONTROLS, *EAGLE1_CONTROLS, *KIMI_CONTROLS, *EAGLE31_CONTROLS, *OTHER_TARGET_CONTROLS,
    *MTP_CONTROLS, *STANDALONE_CONTROLS,
)  # fmt: skip
CASES: dict[str, Case] = {entry.name: entry for entry in (*FAULTS, *CONTROLS)}
HEALTHY = "healthy"
HEALTHY_OF = {"llama": HEALTHY, "kimi": "kimi-healthy"}
"""Pair -> the control that serves it as it was trained, on the default engine."""

__all__ = [
    "CASES",
    "CONTROLS",
    "FAULTS",
    "HEALTHY",
    "HEALTHY_OF",
    "Case",
    "Load",
    "Prepared",
    "Update",
    "case",
    "draft_folder",
    "healthy",
    "materialize",
    "prepare",
    "variant_beside",
]


def case(name: str) -> Case:
    """The case of a name; UnknownNameError suggests the nearest ones."""
    if name not in CASES:
        raise UnknownNameError("fault", name, CASES)
    return CASES[name]


def healthy(pair: str) -> Case:
    """The healthy case of a pair."""
    return case(HEALTHY_OF[pair])
