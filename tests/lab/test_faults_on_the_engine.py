"""Faults of each family on the real engine: the served run names its cause and proves it, nothing else could have told.

Layers, flags and other drafts are in `test_other_targets.py`, `test_standalone.py` and their like; the whole catalogue,
with accept lengths, is `make matrix`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosed import Diagnosed, compared, diagnosed, named, proved

pytestmark = [pytest.mark.lab, pytest.mark.slow]
PROVED = [
    pytest.param("layer-keys-0.5.9", marks=pytest.mark.lab_0_5_9),
    "rope-theta",
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("own-embeddings-replaced", "stale-extend-states")),
]
BROUGHT_BY = {
    "layer-keys-0.5.9": "checkpoint_keys/midlayer.self_attn.q_proj.weight",
    "rope-theta": "draft.rope.theta",
    "own-embeddings-replaced": "embed.replaced",
    "stale-extend-states": None,
}
"""The changed fact that a diff with the healthy run names; no fact of the start shows the last one."""
UNPROVED = ("target-too-shallow", pytest.param("simulated-acceptance", marks=pytest.mark.soak))
"""The server dies before it drafts; acceptance is made up."""
KILLS = ("d2t-absolute", "target-too-shallow")  # the first under real decoding, the second at its first request
CONTROLS = {"healthy": set[str](), "random-embed": {"embed.replaced"}}
SERVED_NOW = ["healthy", pytest.param("random-embed", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    return diagnosed("healthy", tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("name", PROVED)
def test_a_fault_is_named_first_and_proved(name: str, healthy: Diagnosed, tmp_path: Path) -> None:
    result, diagnosis, _ = diagnosed(name, tmp_path)
    named(name, result, diagnosis, dies=name in KILLS)
    usual = healthy.diagnosis["acceptance"]["accept_length"]
    proved(diagnosis, usual)
    difference, status = compared(healthy.result, result)
    assert (difference["verdict"], status) == ("changed", 1)
    assert difference["causes"]["gained"] == [diagnosis["causes"][0]["id"]]
    (told,) = difference["explanations"]
    assert BROUGHT_BY[name] in (told["keys"] or [None])
    assert told["proof"]["repaired_accept_length"] >= 0.95 * usual


@pytest.mark.parametrize("name", UNPROVED)
def test_a_fault_that_no_file_repairs_is_named_first(name: str, tmp_path: Path) -> None:
    result, diagnosis, _ = diagnosed(name, tmp_path)
    named(name, result, diagnosis, dies=name in KILLS)
    assert diagnosis["causes"][0]["proof"]["repaired_accept_length"] is None


def test_a_fault_that_kills_under_decoding_is_named_first(tmp_path: Path) -> None:
    """How much is regained depends on how many rounds there were before the death."""
    result, diagnosis, _ = diagnosed("d2t-absolute", tmp_path)
    named("d2t-absolute", result, diagnosis, dies=True)


@pytest.mark.parametrize("name", SERVED_NOW)
def test_a_control_is_healthy(name: str, healthy: Diagnosed, tmp_path: Path) -> None:
    result, diagnosis, status = healthy if name == "healthy" else diagnosed(name, tmp_path)
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    alarms = {check["id"] for check in diagnosis["checks"] if check["status"] == "alarm"}
    assert alarms == CONTROLS[name]
    assert result.accept_length is not None
    assert result.accept_length > 2.5
