"""What of a parameter no tensor has to write: the zeros that an engine widens experts by."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.landing import LandingMode, elements_loaded  # noqa: E402
from eagletrace.instrumentations.sglang.file_parts import widened  # noqa: E402

EXPERTS, INNER, WIDE, H = 3, 4, 6, 5
NAMES = ("experts.w13_weight", "experts.w2_weight", "shared_experts.gate_up_proj.weight",
         "shared_experts.down_proj.weight")  # fmt: skip


def parameters(fill: float = 0.0) -> dict[str, Any]:
    """The parameters of a block as the engine builds them, widened from INNER to WIDE."""
    shapes = ((EXPERTS, 2 * WIDE, H), (EXPERTS, H, WIDE), (2 * WIDE, H), (H, WIDE))
    return {name: torch.full(shape, fill) for name, shape in zip(NAMES, shapes, strict=True)}


def loaded(tensors: dict[str, Any], left_out: str = "") -> dict[str, bool]:
    """Load a block as `FusedMoE` and its shared expert do, without the projections named so; which parameters lack
    nothing but what they were widened by."""
    model = torch.nn.Module()
    for name, value in tensors.items():
        model.register_buffer(name.replace(".", "_"), value)
    mode, (w13, w2, gate_up, down) = LandingMode(model), tensors.values()
    places = {f"{n}.gate": (w13[n], 0) for n in range(EXPERTS)} | {f"{n}.up": (w13[n], WIDE) for n in range(EXPERTS)}
    places |= {"shared.gate": (gate_up, 0), "shared.up": (gate_up, WIDE)}
    narrow = {f"{n}.down": w2[n] for n in range(EXPERTS)} | {"shared.down": down}
    given = {key: torch.ones(INNER, H, dtype=torch.float64) for key in places}
    given |= {key: torch.ones(H, INNER, dtype=torch.float64) for key in narrow}
    with mode:
        for key, tensor in mode.feed(given.items()):
            if key == left_out:
                continue
            if key in places:
                whole, start = places[key]
                whole[start : start + INNER].copy_(tensor)
            else:
                narrow[key][:, :INNER].copy_(tensor)
    for record in mode.keys:
        for place in record.landed:
            place["parameter"] = next(name for name in tensors if name.replace(".", "_") == place["parameter"])
    written = {name: count for name, (count, _) in elements_loaded(mode.keys).items()}
    return {name: widened(name, value, mode.keys, written.get(name, 0)) for name, value in tensors.items()}


def test_experts_that_were_widened_with_zeros_lack_nothing() -> None:
    assert loaded(parameters()) == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize(("left_out", "lacking"), [("1.up", 0), ("2.down", 1), ("shared.gate", 2), ("shared.down", 3)])
def test_a_projection_that_is_not_there_is_lacking(left_out: str, lacking: int) -> None:
    assert loaded(parameters(), left_out) == {name: name != NAMES[lacking] for name in NAMES}


def test_what_memory_held_is_no_widening() -> None:
    assert loaded(parameters(fill=0.5)) == dict.fromkeys(NAMES, False)


def test_other_parameters_are_left() -> None:
    assert not widened("self_attn.o_proj.weight", torch.zeros(4, 4), [], 8)
