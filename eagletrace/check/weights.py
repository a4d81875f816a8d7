"""Checks of tensors against the engine's parameters: dropped, missing, of another shape, or quantised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eagletrace.check.facts import Facts
from eagletrace.check.nextn import elsewhere
from eagletrace.check.outcome import Outcome, alarm, ok, several, skip, unknown
from eagletrace.checkpoint.dtypes import EIGHT_BIT_FLOATS, FLOATS, NUMPY
from eagletrace.checkpoint.engines import Landing
from eagletrace.checkpoint.engines.sizes import Parameter, Part
from eagletrace.checkpoint.header import TensorInfo
from eagletrace.checkpoint.names import canonical, layer_numbers
from eagletrace.checkpoint.sample import EQUAL

SCALES = ("scale", "scale_inv", "weight_scale", "weight_scale_inv", "input_scale", "zero_point", "qzeros", "g_idx")


@dataclass(frozen=True)
class _Gap:
    """A parameter with parts that no tensor fills and that are not shared with the target."""

    parameter: Parameter
    parts: tuple[Part, ...]

    @property
    def elements(self) -> int:
        return sum(math.prod(part.shape) for part in self.parts)

    @property
    def harmless(self) -> bool:
        """A norm that nobody writes holds ones."""
        return self.parameter.kind == "norm"

    @property
    def small(self) -> bool:
        """A bias of `fc` that nobody writes holds small random values (torch.nn.Linear), and may cost nothing: a draft
        may have been trained without one."""
        return self.parameter.name.endswith("fc.bias")

    def takes(self, info: TensorInfo) -> bool:
        """A tensor of this shape could have been meant for it."""
        shape = self.parameter.shape
        if self.parameter.experts and any(info.shape == part.shape for part in self.parts):
            return True
        return (
            len(info.shape) == len(shape)
            and info.elements <= self.elements
            and info.shape[-1:] == shape[-1:]
            and (len(shape) < 2 or info.shape[0] <= shape[0])
        )


def _gaps(f: Facts, landing: Landing) -> list[_Gap]:
    shared = {"embedding"} if f.shares_embedding else set[str]()
    if f.head_from_target:
        shared.add("head")
    gaps = (_Gap(landing.parameters[name], parts) for name, parts in landing.missing().items())
    return [gap for gap in gaps if gap.parameter.kind not in shared and not gap.parameter.unused]


def _fits(f: Facts, landing: Landing, gaps: list[_Gap]) -> Mapping[str, list[_Gap]]:
    """For each dropped key the gaps that it fits, those with most of its name in common first."""
    found: dict[str, list[_Gap]] = {}
    for key in landing.dropped():
        if _is_scale(key):
            continue
        info = f.draft.checkpoint.info(key)
        fitting = [gap for gap in gaps if gap.takes(info)]
        words = set(key.split("."))
        fitting.sort(key=lambda gap: (-len(words & set(gap.parameter.name.split("."))), gap.harmless))
        found[key] = fitting
    return found


def _is_scale(key: str) -> bool:
    return key.rpartition(".")[2].endswith(SCALES)


def not_loaded(f: Facts) -> Outcome:
    """Every tensor that a parameter waits for is loaded."""
    misplaced = elsewhere(f)
    if misplaced is not None:
        return misplaced
    if f.landing is None:
        return unknown(f.why_no_landing)
    if f.landing.not_built:
        return _not_built(f, f.landing)
    fits = _fits(f, f.landing, _gaps(f, f.landing))
    lost = {key: gaps for key, gaps in fits.items() if gaps and not all(gap.harmless for gap in gaps)}
    if not lost:
        return ok("no dropped tensor fits a parameter that would be left unfilled")
    rows = [
        {"key": key, "shape": list(f.draft.checkpoint.info(key).shape), "fits": gaps[0].parameter.name}
        for key, gaps in lost.items()
    ]
    return alarm(
        several([f"{r['key']} {r['shape']} would land nowhere, while {r['fits']} is never filled" for r in rows]), rows
    )


def _not_built(f: Facts, landing: Landing) -> Outcome:
    """Tensors for which the engine takes a parameter for granted that it has not built."""
    rows = [
        {"key": key, "shape": list(f.draft.checkpoint.info(key).shape), "looked_for": name}
        for key, name in landing.not_built.items()
    ]
    texts = [f"{r['key']} {r['shape']} is looked for as {r['looked_for']}, which the class does not have" for r in rows]
    return alarm(f"{several(texts)}: loading ends with an error", rows, dies=True)


def missing(f: Facts) -> Outcome:
    """Every parameter has a tensor in the file, or the target's storage."""
    if f.landing is None:
        return unknown(f.why_no_landing)
    gaps = _gaps(f, f.landing)
    waited = {g.parameter.name for fit in _fits(f, f.landing, gaps).values() for g in fit}
    left = [gap for gap in gaps if not gap.harmless and not gap.small and gap.parameter.name not in waited]
    if not left:
        return ok(f"all {len(f.landing.parameters)} parameters are filled, shared, or judged by another check")
    rows = [
        {
            "name": gap.parameter.name, "shape": list(gap.parameter.shape),
            "missing": [part.name for part in gap.parts if part.name],
            "checkpoint_keys": sorted(f.landing.filled.get(gap.parameter.name, {}).values()),
        }
        for gap in left
    ]  # fmt: skip
    return alarm(several([_gap_text(gap) for gap in left]), rows)


def _gap_text(gap: _Gap) -> str:
    name, shape = gap.parameter.name, list(gap.parameter.shape)
    parts = [part.name for part in gap.parts if part.name]
    if parts and len(parts) < len(gap.parameter.parts):
        return f"{name} {shape}: no tensor of the file fills its part {', '.join(parts)}"
    return f"{name} {shape}: no tensor of the file fills it and it is not shared with the target"


def neutral(f: Facts) -> Outcome:
    """No norm is left at ones, and no bias at the small values it starts with."""
    if f.landing is None:
        return unknown(f.why_no_landing)
    left = [gap for gap in _gaps(f, f.landing) if gap.harmless or gap.small]
    if not left:
        return ok("every norm and bias has its tensor")
    held = "ones, the neutral value of a norm", "the small random values that a bias starts with"
    texts = [f"{gap.parameter.name} has no tensor and would hold {held[gap.small]}" for gap in left]
    return alarm(several(texts), [{"name": gap.parameter.name} for gap in left])


def unused_keys(f: Facts) -> Outcome:
    """The engine uses every tensor of the file."""
    if f.landing is None:
        return unknown(f.why_no_landing)
    fits = _fits(f, f.landing, _gaps(f, f.landing))
    left = [key for key, gaps in fits.items() if not gaps]
    if not left:
        return ok(f"no tensor is left over, of {len(f.landing.fates)}")
    rows = [{"key": key, "shape": list(f.draft.checkpoint.info(key).shape)} for key in left]
    return alarm(
        several([f"{r['key']} {r['shape']} would be dropped, and no parameter waits for it" for r in rows]), rows
    )


def layers(f: Facts) -> Outcome:
    """The engine builds every decoder layer of the file."""
    if f.landing is None:
        return unknown(f.why_no_landing)
    if f.draft.algorithm == "NEXTN":
        return skip("the draft may lie in the target's own file, whose layers are not the draft's")
    built = len(layer_numbers(map(canonical, f.landing.parameters)))
    fits = _fits(f, f.landing, _gaps(f, f.landing))
    lost: dict[int, list[str]] = {}
    for key, gaps in fits.items():
        for number in layer_numbers([canonical(key)]):
            if not gaps and number >= built:
                lost.setdefault(number, []).append(key)
    if not lost:
        return ok(f"no decoder layer of the file is left over; the engine builds {built}")
    rows = [{"layer": n, "tensors": len(keys), "example": min(keys), "built": built} for n, keys in lost.items()]
    counted = f.settings.get("num_hidden_layers", "not named")
    texts = [f"decoder layer {r['layer']} of the file would land nowhere ({r['tensors']} tensors, {r['example']} among "
             f"them): the engine builds {built}, and num_hidden_layers is {counted}" for r in rows]  # fmt: skip
    return alarm(several(texts), rows)


def shapes(f: Facts) -> Outcome:
    """Every tensor has the shape of its parameter. The fusion layer and the head are left to checks of their own."""
    if f.landing is None:
        return unknown(f.why_no_landing)
    own = ("model.fc.weight", "lm_head.weight")
    wrong = [m for m in f.landing.misfits if m.parameter not in own]
    if not wrong:
        return ok(f"{sum(fate == 'loaded' for fate in f.landing.fates.values())} tensors have their parameter's shape")
    rows = [{"key": m.key, "shape": list(m.shape), "parameter": m.parameter, "due": list(m.due)} for m in wrong]
    texts = [f"{m.key} is {list(m.shape)}, and {m.parameter} takes {list(m.due)}" for m in wrong]
    return alarm(f"{several(texts)}: loading ends with an error", rows, dies=True)


def _packed(f: Facts) -> list[str]:
    """Matrices that are stored in a quantised type."""
    return [
        info.key
        for info in f.draft.checkpoint.infos()
        if info.key.endswith("weight") and len(info.shape) == 2 and info.dtype not in FLOATS
    ]


def decoded(f: Facts) -> Outcome:
    """Quantised tensors come with a configuration that says how to decode them."""
    packed = _packed(f)
    if not packed:
        return ok("no tensor is stored in a quantised type")
    if f.quantised:
        return unknown(
            f"config.json says how {len(packed)} tensors are quantised; a trace tells whether the engine decodes them"
        )
    kinds = sorted({f.draft.checkpoint.info(key).dtype for key in packed})
    unscaled = not any(map(_is_scale, f.draft.checkpoint)) and set(kinds) <= EIGHT_BIT_FLOATS
    return alarm(
        f"{len(packed)} tensors are {', '.join(kinds)} ({packed[0]}), but config.json has no quantization_config: the "
        "engine reads the stored values as they are",
        tensors=packed[:20], certainty="possible" if unscaled else None,
    )  # fmt: skip


def _is_neutral(f: Facts, key: str) -> bool:
    """Whether a tensor is the same without this scale (all ones) or zero point (all zeros)."""
    none = 0.0 if key.endswith("zero_point") else 1.0 if "scale" in key.rsplit(".", 1)[-1] else None
    if none is None or not NUMPY[f.draft.checkpoint.info(key).dtype]:
        return False
    return bool(np.all(np.abs(f.draft.checkpoint.read(key).astype(np.float64) - none) <= EQUAL))


def scales(f: Facts) -> Outcome:
    """The scales of quantised tensors are used; harmless where all are one."""
    keys = [key for key in f.draft.checkpoint if _is_scale(key)]
    if not keys:
        return skip("the file has no scales")
    if f.quantised:
        return unknown(
            f"config.json says how the draft is quantised; a trace tells whether {len(keys)} scales are used"
        )
    acting = [key for key in keys if not _is_neutral(f, key)]
    if acting:
        return alarm(
            f"{len(acting)} scales ({acting[0]}) would land nowhere, as config.json has no quantization_config: their "
            "tensors are served without them",
            scales=acting[:20],
        )
    return alarm(f"{len(keys)} scales ({keys[0]}) would land nowhere; all of them are one (zero points: zero)",
                 scales=keys[:20], certainty="possible")  # fmt: skip
