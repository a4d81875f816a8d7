"""Recorded states of matched requests, stage by stage in the order in which they are computed: which part first?

States are compared at positions before which both sequences have the same tokens. A relative error is that of the
norm, ||a - b|| / ||a||, of one position's state; `policy.STATE_TOLERANCE` says from where states part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from eagletrace.diff import policy
from eagletrace.diff.matching import Request
from eagletrace.diff.measures import queries
from eagletrace.diff.result import StageDifference
from eagletrace.store import Run

Stage = tuple[str, int | None, int | None]  # stage, layer, depth
States = npt.NDArray[np.float32]

_ORDER = ("input_ids", "target_layer", "target_aux", "fc_out", "draft_in", "draft_out")
"""Stages that are compared. Of one depth `draft_in` comes before `draft_out`, which is what it hands on."""
_TINY = 1e-12


@dataclass(frozen=True)
class Recorded:
    """States of one stage of one request: value by position, each a vector, and the dtype that they were stored in."""

    values: dict[int, States]
    dtype: str


def compare_states(
    a: Run, b: Run, pairs: Sequence[tuple[Request, Request]], until: Sequence[int | None]
) -> tuple[tuple[StageDifference, ...], tuple[str, ...]]:
    """Compare the recorded states of the first pairs that have any, and say what could not be compared.

    `until[i]` is the first position at which the tokens of pair i differ; None where none does.
    """
    there = [{(str(h), int(p), int(s)) for h, p, s in run.execute(_WITH_STATES)} for run in (a, b)]
    if not all(there):
        missing = "neither run holds" if not any(there) else "one of the runs holds no"
        return (), (f"{missing} hidden states (EAGLETRACE_LEVEL=tensors records them)",)
    chosen = [n for n, (p, q) in enumerate(pairs) if p.key in there[0] and q.key in there[1]][: policy.TENSOR_PAIRS]
    found: dict[Stage, StageDifference] = {}
    for n in chosen:
        one, other = (_states(run, request) for run, request in zip((a, b), pairs[n], strict=True))
        for stage in one.keys() & other.keys():
            difference = _difference(stage, one[stage], other[stage], until[n], pairs[n][0].id)
            if difference is not None:
                found[stage] = _worse(found.get(stage), difference)
    return tuple(found[stage] for stage in sorted(found, key=_place)), ()


_WITH_STATES = "SELECT DISTINCT host, pid, request_seq FROM tensors WHERE stage = 'target_aux'"


def _place(stage: Stage) -> tuple[int, int, int]:
    """Draft steps follow each other: the input of depth 2, its output, the input of depth 3 ..."""
    name, layer, depth = stage
    first = _ORDER.index("draft_in")
    kind = _ORDER.index(name)
    return min(kind, first), (depth if depth is not None else layer) or 0, kind


def _states(run: Run, request: Request) -> dict[Stage, Recorded]:
    """States of one request by stage and position; a row of several branches is one vector."""
    host, pid, seq = request.key
    found: dict[Stage, Recorded] = {}
    rows = run.execute(queries()["states"].sql, {"host": host, "pid": pid, "seq": seq})
    for stage, layer, depth, _, position, dtype, shape, data in rows:
        if stage not in _ORDER:
            continue
        recorded = found.setdefault((str(stage), layer, depth), Recorded({}, str(dtype)))
        for at, value in _rows(stage, int(position), array(dtype, shape, data)):
            recorded.values.setdefault(at, value)
    return found


def _rows(stage: str, position: int, values: States) -> Iterator[tuple[int, States]]:
    """Vectors by position: the first dimension counts positions, in draft steps branches."""
    if stage in ("draft_in", "draft_out"):
        yield position, values.reshape(-1)
    else:
        flat = values.reshape(len(values), -1) if values.size else values.reshape(0, 1)
        yield from ((position + n, row) for n, row in enumerate(flat))


def array(dtype: str, shape: Sequence[int], data: bytes) -> States:
    """A stored tensor as float32; token ids keep their value up to 2**24."""
    kind: Any = getattr(ml_dtypes, dtype) if hasattr(ml_dtypes, dtype) else dtype
    return np.frombuffer(data, dtype=kind).astype(np.float32).reshape(list(shape))


def _difference(stage: Stage, a: Recorded, b: Recorded, until: int | None, request: str) -> StageDifference | None:
    """Both at the positions that they have in common; None where there is none."""
    common = sorted(p for p in a.values.keys() & b.values.keys() if until is None or p < until - 1)
    if not common:
        return None
    tolerance = max(policy.STATE_TOLERANCE.get(d, policy.STATE_TOLERANCE["float32"]) for d in (a.dtype, b.dtype))
    errors, cosines = zip(*(_compare(a.values[p], b.values[p]) for p in common), strict=True)
    bad = next((p for p, error in zip(common, errors, strict=True) if error > tolerance), None)
    return StageDifference(*stage, len(common), min(cosines), max(errors), tolerance, bad, request)


def _compare(a: States, b: States) -> tuple[float, float]:
    """Relative error and cosine; infinity and 0 where widths differ or a value is not finite."""
    if a.shape != b.shape:
        return math.inf, 0.0
    norm, other = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    error = float(np.linalg.norm(a - b)) / max(norm, _TINY)
    if not math.isfinite(error) or not math.isfinite(other):
        return math.inf, 0.0
    cosine = float(a @ b) / max(norm * other, _TINY) if norm or other else 1.0
    return error, max(-1.0, min(1.0, cosine))


def _worse(before: StageDifference | None, now: StageDifference) -> StageDifference:
    """The worst of several requests, and the first bad position of the first that has one."""
    if before is None:
        return now
    bad = before if before.first_bad_position is not None else now
    return StageDifference(
        now.stage, now.layer, now.depth, before.positions + now.positions, min(before.cosine, now.cosine),
        max(before.max_rel_error, now.max_rel_error), now.tolerance, bad.first_bad_position, bad.request,
    )  # fmt: skip
