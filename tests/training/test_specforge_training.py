"""A step of a SpecForge-style model is recorded by what it has: whole-vocabulary targets, a frozen embedding."""
# The packages used are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import LlamaForCausalLM  # noqa: E402

import eagletrace  # noqa: E402
from eagletrace.diff import diff  # noqa: E402
from eagletrace.instrumentations.training import recording  # noqa: E402
from eagletrace.lab.pair import shipped_pair  # noqa: E402
from eagletrace.store import open_run  # noqa: E402
from tests.training.served import served_export, tensors_of  # noqa: E402
from tests.training.specforge_like import OnlineEagle3Model, shipped_draft, step_of  # noqa: E402
from tests.training.trained import LENGTH, PROMPT, path_of, target_folder, texts  # noqa: E402

TEXTS = 6


@pytest.fixture(scope="module")
def target() -> Any:
    return LlamaForCausalLM.from_pretrained(target_folder(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def step(target: Any) -> dict[str, Any]:
    return step_of(target, texts(target, TEXTS))


@pytest.fixture(scope="module")
def model() -> OnlineEagle3Model:
    return shipped_draft().eval()


@torch.no_grad()
def record(model: Any, step: dict[str, Any], folder: Path, **given: Any) -> tuple[Any, Any]:
    with eagletrace.record_training(model, dir=folder, **given) as found:
        result = model(**step)
    return found, result


def test_first_drafts_are_counted_as_the_trainer_counts_them(model: Any, step: dict[str, Any], tmp_path: Path) -> None:
    found, (_, corrects, counts) = record(model, step, tmp_path)
    assert found.problem is None
    with open_run(path_of(found)) as run:
        rows = run.execute("SELECT reached, accepted FROM totals_by_depth ORDER BY depth")
    assert rows[0] == (int(counts[0]), int(corrects[0])) == (TEXTS * (LENGTH - PROMPT), rows[0][1])
    assert found.accuracy[0] > 0.6 and found.accuracy[1] > 0.6, "the shipped draft drafts well"


def test_tokens_outside_the_draft_vocabulary_are_wrong(model: Any, step: dict[str, Any], tmp_path: Path) -> None:
    outside = (~model.draft_model.t2d).nonzero().flatten()[0]
    logits = step["target"].clone()
    logits[:, 40:50] = 0
    logits[:, 40:50, outside] = 9.0
    found, _ = record(model, {**step, "target": logits}, tmp_path)
    with open_run(path_of(found)) as run:
        rows = run.execute(
            "SELECT DISTINCT accepted, draft_rank_of_target_token FROM verifies "
            "WHERE depth = 1 AND NOT target_token_in_draft_vocab"
        )
        ((count,),) = run.execute(
            "SELECT count(*) FROM verifies WHERE depth = 1 AND expected_token = $1", [int(outside)]
        )
        assert json.loads(run.execute("SELECT actual FROM contract WHERE key = 'training.target_choice'")[0][0]) == (
            "vocabulary"
        )
    assert (False, None) in rows and not any(accepted for accepted, _ in rows)
    assert count >= 10 * TEXTS


def test_a_teacher_in_hidden_states_gives_the_same(
    model: Any, target: Any, step: dict[str, Any], tmp_path: Path
) -> None:
    plain, _ = record(model, step, tmp_path)
    compact = {**step, "target": None, "target_hidden_for_compact": step["target"],
               "target_head_weight": torch.eye(step["target"].shape[-1])}  # fmt: skip
    found, _ = record(model, compact, tmp_path)
    assert found.problem is None and found.accuracy == plain.accuracy


def test_the_draft_alone_has_no_step(model: Any, step: dict[str, Any], tmp_path: Path) -> None:
    found, _ = record(model, step, tmp_path)
    assert found.problem is None
    with eagletrace.record_training(model.draft_model, dir=tmp_path) as found, torch.no_grad():
        model(**step)
    assert found.problem == recording.NO_STEP
    with open_run(path_of(found)) as run:
        ((params,),) = run.execute("SELECT count(*) FROM params")
    assert params == len(model.draft_model.state_dict())


def test_a_wrapped_model_is_looked_through(model: Any, step: dict[str, Any], tmp_path: Path) -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = model

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    wrapped = Wrapper().eval()
    found, _ = record(wrapped, step, tmp_path)
    plain, _ = record(model, step, tmp_path)
    assert found.problem is None and found.accuracy == plain.accuracy


def test_the_shipped_draft_is_the_trained_one(model: Any, step: dict[str, Any], tmp_path: Path) -> None:
    """The embedding is frozen, the target's and not in the file; the layer is `midlayer` in both."""
    found, _ = record(model, step, tmp_path, target=target_folder())
    draft = shipped_pair() / "drafts" / "default"
    said = diff(path_of(found), served_export(draft).write(tmp_path, "served"))
    assert said.verdict == "same" and said.training is not None, said.why
    assert said.training.counts() == {"same": len(tensors_of(draft)), "from_target": 1}
    assert [(f.name, f.equals_target) for f in said.training.frozen] == [("embed_tokens.weight", True)]


def test_without_the_target_the_served_one_tells(model: Any, step: dict[str, Any], tmp_path: Path) -> None:
    found, _ = record(model, step, tmp_path)
    run = served_export(shipped_pair() / "drafts" / "default")
    said = diff(path_of(found), run.write(tmp_path, "one"))
    assert said.training is not None and said.training.frozen[0].equals_target is True
    run.params["target"]["checksum"] = "1" * 16
    said = diff(path_of(found), run.write(tmp_path, "two"))
    assert said.verdict == "changed" and "embed_tokens.weight (served with the target's" in said.why
    del run.params["target"]
    said = diff(path_of(found), run.write(tmp_path, "three"))
    assert said.training is not None and [t.name for t in said.training.unknown] == ["embed_tokens.weight"]


def test_random_frozen_embeddings_are_told(step: dict[str, Any], tmp_path: Path) -> None:
    """The story's last question: frozen, and not the target's."""
    model = shipped_draft().eval()
    torch.nn.init.normal_(model.draft_model.embed_tokens.weight)
    found, _ = record(model, step, tmp_path, target=target_folder())
    said = diff(path_of(found), served_export(shipped_pair() / "drafts" / "default").write(tmp_path, "served"))
    assert said.training is not None and said.training.frozen[0].equals_target is False
    assert "embed_tokens.weight (served with the target's, which training has not)" in said.why
