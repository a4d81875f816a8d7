"""What a cause is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["configuration", "capture", "wiring", "effect"]
STAGES: tuple[Stage, ...] = ("configuration", "capture", "wiring", "effect")
"""From upstream to downstream: of two explanations the more upstream one is the cause."""


@dataclass(frozen=True)
class CauseInfo:
    """One cause, declared once; `explain`, the report and the docs read it from here.

    `fix` may name `{draft}` and `{target}`, which become the paths that were served. `loss` says whether the cause
    takes nearly all acceptance or a part of it. `effects` are ids of checks that go off as a consequence: their
    findings are evidence of this cause and not causes of their own. `needs` is empty for a cause that the checks
    of this version can name, else it says what would have to be recorded and compared. `untested` says what of it no
    CPU can produce: its checks are tested on traces that the recorder's own writer wrote.
    """

    id: str
    stage: Stage
    title: str
    what: str
    why: str
    shows: str
    fix: str
    cases: tuple[str, ...] = ()
    loss: Literal["total", "partial"] = "total"
    effects: tuple[str, ...] = ()
    needs: str = ""
    untested: str = ""


SYMPTOMS = (
    "acceptance.depth1",
    "acceptance.deeper",
    "draft.target_rank",
    "draft.entropy",
    "engine.exception",
)
"""Checks that show that something is wrong and not what: evidence of whatever cause ranks first."""
