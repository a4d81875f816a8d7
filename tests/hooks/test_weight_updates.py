"""Updates of weights while serving: which side, which parameters, and what is left out where calls follow fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import pyarrow.parquet as pq
import torch
from torch import nn

from eagletrace.instrumentations.patching import install
from eagletrace.instrumentations.sglang import draft_models, load, updates
from eagletrace.instrumentations.sglang.hooks import AT_LOAD, HOOKS
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.targets import BY_NAME
from eagletrace.record.recorder import Recorder
from eagletrace.settings import Settings


class Target(nn.Module):
    """Embedding and head, as a target hands them to its draft."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.layer = nn.Linear(4, 4)

    def get_embed_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.embed_tokens.weight, self.lm_head.weight


class Draft(nn.Module):
    """Shares the target's embedding."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.embed_tokens, self.fc = nn.Embedding(8, 4), nn.Linear(12, 4, bias=False)
        self.embed_tokens.weight = target.embed_tokens.weight


class Runner:
    """A `ModelRunner` to 0.5.15; the updater of one in later releases asks it for its model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def update_weights_from_disk(self, model_path: str, load_format: str = "auto") -> tuple[bool, str]:
        if model_path == "missing":
            return False, "no such file"
        self._grow()
        return True, "done"

    def update_weights_from_tensor(self, named_tensors: Any, load_format: str | None = None) -> tuple[bool, str]:
        self._grow()
        if load_format == "bad":
            raise NotImplementedError("load_format")
        return True, "done"

    def update_weights_from_distributed(self, names: list[str]) -> tuple[bool, str]:
        return True, "done"

    def end_weight_update(self, *, run_post_load: bool) -> None:
        self._grow()

    def _grow(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1.0)


class Updater(Runner):
    """A `WeightUpdater`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.get_model: Callable[[], nn.Module] = lambda: model


class Observed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        recorder = Recorder(
            folder, Settings(), {"host": "h", "pid": 1, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}, {}
        )
        recorder.start()
        self.session = Session(recorder, "0", SimpleNamespace())
        self.target, self.draft = Runner(Target()), Runner(nn.Module())
        model = self.target.model
        assert isinstance(model, Target)
        self.draft = Runner(Draft(model))
        self.session.target_runner, self.session.draft_runner = self.target, self.draft
        load.write_params(self.session, draft_models.drafts(self.session), "serving")

    def rows(self, table: str) -> list[dict[str, Any]]:
        self.session.recorder.stop()
        return [
            row for file in sorted((self.folder / table).glob("*.parquet")) for row in pq.read_table(file).to_pylist()
        ]

    def events(self) -> list[dict[str, Any]]:
        import json

        return [json.loads(row["detail"]) for row in self.rows("events") if row["kind"] == "weights_changed"]


@pytest.fixture
def observed(tmp_path: Path) -> Iterator[Observed]:
    seen, patches = Observed(tmp_path / "run"), list[Any]()
    for name, method in (("update_disk", "update_weights_from_disk"), ("update_tensor", "update_weights_from_tensor"),
                         ("update_distributed", "update_weights_from_distributed")):  # fmt: skip
        target = replace(BY_NAME[f"runner.{name}"], path=f"{__name__}:Runner.{method}")
        patches.append(install(HOOKS[f"runner.{name}"](target, seen.session)))
    end = replace(BY_NAME["updater.end"], path=f"{__name__}:Runner.end_weight_update")
    patches.append(install(HOOKS["updater.end"](end, seen.session)))
    yield seen
    assert [patch.hook.last_error for patch in patches] == [None] * len(patches)
    for patch in patches:
        patch.undo()


def test_an_update_of_the_target_says_what_the_draft_shares(observed: Observed) -> None:
    assert observed.target.update_weights_from_disk("/new") == (True, "done")
    (event,) = observed.events()
    assert (event["side"], event["epoch"], event["how"], event["success"]) == ("target", 1, "disk", True)
    assert event["path"] == "/new" and event["changed"] == 3
    assert set(event["names"]) == {"embed_tokens.weight", "lm_head.weight", "draft:embed_tokens.weight"}
    rows = [row for row in observed.rows("params") if row["epoch"] == 1]
    assert {(row["side"], row["name"], row["phase"]) for row in rows} == {
        ("target", "embed_tokens.weight", "updated"), ("target", "lm_head.weight", "updated"),
        ("draft", "embed_tokens.weight", "updated")}  # fmt: skip
    before = {(r["side"], r["name"]): r["checksum"] for r in observed.rows("params") if r["epoch"] == 0}
    assert all(row["checksum"] != before[row["side"], row["name"]] for row in rows)
    assert all(row["shared_with"] == "target:embed_tokens.weight" for row in rows if row["side"] == "draft")


def test_an_update_of_the_draft_through_an_updater(observed: Observed) -> None:
    tensors = [("fc.weight", torch.zeros(1)), ("norm.weight", torch.zeros(1))]
    Updater(observed.draft.model).update_weights_from_tensor(tensors)
    (event,) = observed.events()
    assert (event["side"], event["given"], event["given_names"]) == ("draft", 2, ["fc.weight", "norm.weight"])
    assert "fc.weight" in event["names"]


def test_a_bucket_names_its_tensors(observed: Observed) -> None:
    bucket = {"flattened_tensor": torch.zeros(1), "metadata": [SimpleNamespace(name="fc.weight")]}
    observed.draft.update_weights_from_tensor(named_tensors=bucket)
    assert observed.events()[0]["given_names"] == ["fc.weight"]


def test_an_update_that_changed_nothing_says_so(observed: Observed) -> None:
    observed.draft.update_weights_from_distributed(["a.weight", "b.weight"])
    (event,) = observed.events()
    assert (event["names"], event["changed"], event["given_names"]) == ([], 0, ["a.weight", "b.weight"])
    assert all(row["epoch"] == 0 for row in observed.rows("params"))


def test_a_failed_update_is_an_event_all_the_same(observed: Observed) -> None:
    assert observed.target.update_weights_from_disk("missing") == (False, "no such file")
    with pytest.raises(NotImplementedError):
        observed.draft.update_weights_from_tensor([], "bad")
    refused, broken = observed.events()
    assert (refused["success"], refused["message"], refused["epoch"]) == (False, "no such file", 1)
    assert (broken["side"], broken["success"], broken["epoch"]) == ("draft", False, 1)
    assert "load_format" in broken["message"]


def test_checksums_take_no_more_than_their_share_of_the_time(observed: Observed) -> None:
    observed.draft.update_weights_from_disk("/1")
    observed.session.checksums_from += 60
    observed.draft.update_weights_from_disk("/2")
    observed.draft.end_weight_update(run_post_load=True)
    first, second, end = observed.events()
    assert first["names"] and second["names"] is None and second["changed"] is None
    assert end["names"] and [e["epoch"] for e in (first, second, end)] == [1, 2, 3]
    assert {row["epoch"] for row in observed.rows("params")} == {0, 1, 3}


def test_hooks_of_updates_stand_while_paused_and_at_every_level() -> None:
    named = {name for name, hook in HOOKS.items() if hook is updates.WeightsUpdated}
    assert len(named) == 10 and named <= set(AT_LOAD)
