"""The first place at which matched requests part: token, verdict, stage and layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from eagletrace.diff import Divergence
from eagletrace.diff.divergence import find_divergence
from eagletrace.diff.matching import Request, match
from eagletrace.diff.measures import measure
from eagletrace.store import open_run
from tests.store.runs import chain, make_folder, request, writer

Row = dict[str, Any]
TARGETS = [[101, 102, 103, 9], [104, 9, 9, 9]]
DRAFTS = [[101, 102, 7], [8, 8, 8]]


def write(path: Path, drafts: Sequence[Sequence[int]] = DRAFTS, targets: Sequence[Sequence[int]] = TARGETS, *,
          prompt: str = "aa", tensors: Sequence[Row] = (), root: int = 100, **round_facts: Any) -> Path:  # fmt: skip
    """One request of two rounds: the output is 100 to 104 unless changed."""
    make_folder(path)
    w = writer(path)
    rounds, position, first = list[Row](), 10, root
    for number, (drafted, target) in enumerate(zip(drafts, targets, strict=True), 1):
        row, nodes = chain(number, position, first, drafted, target)
        rounds.append({**row, **round_facts})
        w.write("verifies", nodes)
        position, first = position + row["committed"], target[row["accepted"]]
    w.write("rounds", rounds)
    w.write("requests", [request(prompt_hash=prompt)])
    if tensors:
        w.write("tensors", list(tensors))
    return path


def divergence(a: Path, b: Path) -> Divergence:
    with open_run(a) as one, open_run(b) as other:
        measure(one)
        measure(other)
        return find_divergence(one, other)


def test_equal_runs_do_not_part(tmp_path: Path) -> None:
    found = divergence(write(tmp_path / "a"), write(tmp_path / "b"))
    assert (found.matched, found.compared, found.parted, found.same_outputs, found.first) == (1, 1, 0, 1, None)
    assert found.to_json() is None


def test_the_first_drafted_token(tmp_path: Path) -> None:
    found = divergence(write(tmp_path / "a"), write(tmp_path / "b", [DRAFTS[0], [8, 5, 8]]))
    assert found.first is not None and found.same_outputs == 1 and found.by_kind == {"drafted_token": 1}
    first = found.first
    assert (first.what, first.a, first.b, first.depth, first.position, first.output_index) == (
        "drafted_token", 8, 5, 2, 15, 5)  # fmt: skip


def test_a_token_of_the_output(tmp_path: Path) -> None:
    other = [[101, 102, 66, 9], [104, 9, 9, 9]]
    found = divergence(write(tmp_path / "a"), write(tmp_path / "b", targets=other))
    assert found.first is not None and found.same_outputs == 0
    assert (found.first.what, found.first.a, found.first.b) == ("target_token", 103, 66)
    assert found.first.output_index == 3


def test_the_token_of_the_prefill(tmp_path: Path) -> None:
    found = divergence(write(tmp_path / "a"), write(tmp_path / "b", root=55)).first
    assert found is not None and (found.what, found.a, found.b, found.output_index) == ("output_token", 100, 55, 0)


def test_a_target_token_after_a_wrong_draft_is_of_no_text(tmp_path: Path) -> None:
    other = [[101, 102, 103, 77], TARGETS[1]]
    assert divergence(write(tmp_path / "a"), write(tmp_path / "b", targets=other)).first is None


def test_a_verdict(tmp_path: Path) -> None:
    """The same draft and the same choice of the target, rejected in one run."""
    a, b = write(tmp_path / "a"), make_folder(tmp_path / "b")
    row, nodes = chain(1, 10, 100, DRAFTS[0], TARGETS[0])
    nodes[2]["accepted"] = False
    w = writer(b)
    w.write("rounds", [{**row, "accepted": 1, "committed": 2}])
    w.write("verifies", nodes)
    w.write("requests", [request(prompt_hash="aa")])
    found = divergence(a, b).first
    assert found is not None and (found.what, found.depth) == ("verdict", 2)
    assert (found.a, found.b) == ({"token": 102, "accepted": True}, {"token": 102, "accepted": False})


def test_other_prompts_are_not_matched(tmp_path: Path) -> None:
    found = divergence(write(tmp_path / "a"), write(tmp_path / "b", prompt="bb"))
    assert found.matched == 0 and found.to_json() is None and "no prompt" in found.notes[0]


def test_the_second_request_of_a_prompt_is_matched_with_the_second() -> None:
    def requests(name: str, *prompts: str) -> list[Request]:
        return [Request((name, 1, n), f"{name}{n}", prompt, 5) for n, prompt in enumerate(prompts)]

    pairs = match(requests("a", "x", "y", "x"), requests("b", "z", "x", "x", "x"))
    assert [(p.id, q.id) for p, q in pairs] == [("a0", "b1"), ("a2", "b2")]


def state(stage: str, values: Any, dtype: str = "bfloat16", position: int = 0, **place: Any) -> Row:
    kind: Any = getattr(ml_dtypes, dtype, dtype)
    array = np.asarray(values, np.float32).astype(kind)
    return {
        "request_seq": 1, "position": position, "stage": stage, "dtype": dtype, "shape": list(array.shape),
        "data": array.tobytes(), **place,
    }  # fmt: skip


def states(layer_2: float = 0.0, fused: float = 0.0, aux_scale: float = 1.0, width: int = 8) -> list[Row]:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((6, 8))
    other = rng.standard_normal((6, 8))
    return [
        state("target_aux", np.tile(base, (1, width // 8)) * aux_scale + layer_2 * np.tile(other, (1, width // 8))),
        state("target_layer", base, layer=1), state("target_layer", base * 2 + layer_2 * other, layer=2),
        state("fc_out", base * 3 + (layer_2 + fused) * other),
        state("draft_out", base[:1] + (layer_2 + fused) * other[:1], position=5, depth=1, round=1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"layer_2": 1.0}, "target_layer 2"), ({"fused": 1.0}, "fc_out"), ({"width": 16}, "target_aux"),
     ({"aux_scale": 1.5}, "target_aux")],
)  # fmt: skip
def test_the_first_stage_and_layer(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    a = write(tmp_path / "a", tensors=states())
    found = divergence(a, write(tmp_path / "b", tensors=states(**changes)))
    assert found.first_stage is not None and found.first_stage.name == name
    assert found.first_stage.first_bad_position == 0
    assert [s.name for s in found.stages][:2] == ["target_layer 1", "target_layer 2"]
    json = found.to_json()
    assert json is not None and json["what"] == "state" and json["first_stage"]["stage"] == name.split()[0]


def test_other_roundings_are_one_state(tmp_path: Path) -> None:
    found = divergence(
        write(tmp_path / "a", tensors=states()), write(tmp_path / "b", tensors=states(layer_2=0.005))
    )  # fmt: skip
    assert found.stages and found.first_stage is None and 0 < max(s.max_rel_error for s in found.stages) < 0.05


def test_states_after_another_token_are_not_compared(tmp_path: Path) -> None:
    """The output parts at position 13: of the rows 0 to 15, those from 12 on were computed with other tokens."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((16, 8))
    later = np.where(np.arange(16)[:, None] < 12, base, -base)
    a = write(tmp_path / "a", tensors=[state("target_aux", base)])
    b = write(tmp_path / "b", targets=[[101, 102, 66, 9], TARGETS[1]], tensors=[state("target_aux", later)])
    found = divergence(a, b)
    assert found.first_stage is None and [s.positions for s in found.stages] == [12]


def test_states_that_are_not_finite_part(tmp_path: Path) -> None:
    bad = states()
    bad[0] = state("target_aux", np.full((6, 8), np.nan))
    found = divergence(write(tmp_path / "a", tensors=states()), write(tmp_path / "b", tensors=bad))
    assert found.first_stage is not None and found.first_stage.name == "target_aux" and found.other_state is not None
