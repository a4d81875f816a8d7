"""Every cause that a diagnosis may name, declared once."""

from __future__ import annotations

from eagletrace.diagnose.causes import capture, configuration, runtime, sharing, training, vocabulary, weights
from eagletrace.diagnose.causes.model import STAGES, SYMPTOMS, CauseInfo, Stage
from eagletrace.errors import UnknownNameError

CAUSES: dict[str, CauseInfo] = {
    cause.id: cause
    for module in (configuration, capture, sharing, weights, vocabulary, runtime, training)
    for cause in module.CAUSES
}
"""All causes by id, the more upstream ones first."""


def explain(cause_id: str) -> CauseInfo:
    """The page of a cause; UnknownNameError suggests the nearest ids."""
    try:
        return CAUSES[cause_id]
    except KeyError:
        raise UnknownNameError("cause", cause_id, CAUSES) from None


__all__ = ["CAUSES", "STAGES", "SYMPTOMS", "CauseInfo", "Stage", "explain"]
