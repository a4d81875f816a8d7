"""`eagletrace diff TRAINING SERVED`: the same draft, another one, or the same one served otherwise."""
# The packages used are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("speculators")

import eagletrace  # noqa: E402
from eagletrace.cli.main import main  # noqa: E402
from eagletrace.diagnose.result import DepthRate  # noqa: E402
from eagletrace.diff import TrainingComparison, diff, training  # noqa: E402
from eagletrace.diff.contract import Contract  # noqa: E402
from eagletrace.diff.facts import Facts, read_facts  # noqa: E402
from eagletrace.diff.result import CauseDelta  # noqa: E402
from eagletrace.store import open_run  # noqa: E402
from tests.diagnose.synthetic import Synthetic  # noqa: E402
from tests.training.served import facts_of, served, served_export, tensors_of  # noqa: E402
from tests.training.trained import target_folder, trained  # noqa: E402

RATES = (0.6, 0.6, 0.6)


@dataclass
class Export:
    """A recorded run of training with its facts, its exports, and what the one in bfloat16 holds."""

    path: Path
    facts: Facts
    states: training.States
    exact: Path
    tensors: dict[str, Any]
    config: dict[str, Any]
    rate: float


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    folder = tmp_path_factory.mktemp("training")
    draft = trained(texts_count=8, steps=2, shipped=True, rate=1e-4)
    with eagletrace.record_training(draft.model, dir=folder / "runs", target=target_folder()) as found:
        draft.validate()
    assert found.problem is None and found.path is not None
    with open_run(found.path) as run:
        facts, states = read_facts(run), training.read_states(run)
    exact, rounded = draft.export(folder / "exact", torch.float32), draft.export(folder / "rounded")
    config = json.loads((rounded / "config.json").read_text())
    return Export(found.path, facts, states, exact, tensors_of(rounded), config, found.accuracy[0] or 0.0)


@dataclass
class Said:
    """What is said of training and a served run."""

    found: TrainingComparison
    contract: Contract
    verdict: str
    why: str

    def states(self) -> dict[str, str]:
        """Tensors that are not simply what was trained."""
        plain = ("same", "rounded", "left_out")
        return {t.label: t.state for t in self.found.tensors if t.state not in plain}


Compare = Callable[..., Said]


@pytest.fixture
def compare(export: Export) -> Compare:
    """Training against a served run; by default of the export in bfloat16, changed before it is served."""

    def run(
        change: Callable[[dict[str, Any]], Any] = lambda _: None,
        of: Synthetic | None = None,
        accepted: int = 60,
        states: training.States | None = None,
        causes: CauseDelta | None = None,
    ) -> Said:
        tensors = {name: t.clone() for name, t in export.tensors.items()}
        change(tensors)
        facts = facts_of(of or served(tensors, export.config, RATES))
        rates = DepthRate(1, 500, int(500 * export.rate)), DepthRate(1, 100, accepted)
        found = training.compare_training(export.facts, facts, *rates, export.states, states or {})
        return Said(found, training.contract_of(found), *training.judge(found, causes or CauseDelta()))

    return run


def test_the_good_export_is_the_same_draft(export: Export, tmp_path: Path) -> None:
    run = served(export.tensors, export.config, RATES)
    said = diff(export.path, run.write(tmp_path))
    assert said.verdict == "same" and said.exit_code == 0 and not said.contract
    assert said.why.startswith(
        "same draft: 16 of 16 tensors of the file are training's, 12 of them rounded to bfloat16"
    )
    found = said.training
    assert found is not None and found.same_draft and found.departures == ()
    told = {t.label: t.state for t in found.tensors}
    assert told["fc.weight"] == "rounded" and told["embed_tokens.weight"] == "same" and told["d2t"] == "same"
    assert told["verifier_lm_head.weight"] == told["verifier_norm.weight"] == "left_out"
    assert found.training.rate == pytest.approx(export.rate) and found.served.reached == 400
    assert f"{export.rate:.0%} of" in said.why and "are accepted when served" in said.why


def test_an_export_that_was_not_rounded_is_told_as_such(export: Export, compare: Compare) -> None:
    said = compare(of=served_export(export.exact))
    assert said.found.counts() == {"same": 16, "left_out": 2} and "rounded" not in said.why


def test_frozen_parts_are_told_with_whose_they_are(compare: Compare) -> None:
    """The lab's draft has a head of its own, and speculators 0.9 leaves it frozen."""
    said = compare()
    assert {f.name: f.equals_target for f in said.found.frozen} == {
        "embed_tokens.weight": True, "lm_head.weight": False, "verifier_lm_head.weight": None,
        "verifier_norm.weight": None,
    }  # fmt: skip
    assert "fc.weight" in said.found.trained


def noise(name: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = (tensors[name].float() + 0.01 * torch.randn(tensors[name].shape)).bfloat16()

    return change


def without(name: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        del tensors[name]

    return change


def cut(tensors: dict[str, Any]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:, :256].contiguous()


def extra(tensors: dict[str, Any]) -> None:
    tensors["layers.1.mlp.up_proj.weight"] = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("change", "name", "state", "words"),
    [
        (noise("lm_head.weight"), "lm_head.weight", "differs", "other values"),
        (noise("fc.weight"), "fc.weight", "differs", "other values"),
        (noise("embed_tokens.weight"), "embed_tokens.weight", "differs", "other values"),
        (cut, "fc.weight", "differs", "shape [128, 384] in training, [128, 256] served"),
        (without("norm.weight"), "norm.weight", "missing", "not in the served file"),
        (without("lm_head.weight"), "lm_head.weight", "missing", "not in the served file"),
        (extra, "layers.1.mlp.up_proj.weight", "extra", "not in training"),
    ],
    ids=["head", "fc", "embedding", "shape", "norm", "no_head", "extra"],
)  # fmt: skip
def test_a_bad_export_is_named(compare: Compare, change: Any, name: str, state: str, words: str) -> None:
    torch.manual_seed(1)
    said = compare(change)
    assert said.verdict == "changed" and said.why.startswith("another draft is served: ")
    assert said.states() == {name: state} and name in said.why and words in said.why
    (fact,) = said.contract.changes
    assert fact.importance == "decisive" and name in fact.key and fact.a != fact.b


def test_names_of_the_other_library_are_the_same_draft(compare: Compare) -> None:
    def rename(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.startswith("layers.0.")]:
            tensors[name.replace("layers.0.", "midlayer.")] = tensors.pop(name)

    assert compare(rename).verdict == "same"


def test_a_tensor_that_the_engine_dropped_is_not_what_is_served(export: Export, compare: Compare) -> None:
    run = served(export.tensors, export.config, RATES)
    run.keys["layers.0.mlp.up_proj.weight"]["fate"] = "dropped"
    said = compare(of=run)
    assert said.verdict == "changed" and said.states() == {"layers.0.mlp.up_proj.weight": "not_loaded"}
    assert "the engine dropped it" in said.why


def test_an_embedding_that_the_file_leaves_to_the_target(compare: Compare) -> None:
    said = compare(without("embed_tokens.weight"))
    assert said.verdict == "same" and said.states() == {"embed_tokens.weight": "from_target"}


def test_a_head_that_the_file_leaves_to_the_target(export: Export, compare: Compare) -> None:
    run = served({n: t for n, t in export.tensors.items() if n != "lm_head.weight"}, export.config, RATES)
    said = compare(of=run.fact("head.shared_with_target", True))
    assert said.verdict == "changed" and "lm_head.weight (served with the target's" in said.why


DEPARTURES: dict[str, tuple[str, Any, Any, str]] = {
    "layers": ("aux.layers_captured", [1, 5, 8], None, "trained on layers [2, 6, 9], served from [1, 5, 8]"),
    "rope": ("draft.rope", {"theta": 500000.0, "scaling": "none", "head_dim": 32, "partial": None}, None,
             "draft.rope theta 10000.0 in training, 500000.0 served"),
    "norm": ("draft.config", {"norm_before_fc": True}, None, "norm_before_fc False in training, True served"),
    "head": ("head.replaced", {"changed": True, "by": "set_embed_and_head"}, None, "the engine replaced the file's"),
    "fc": ("forward.fc_applied", False, True, "forward.fc_applied: True is due, the server has False"),
    "map": ("hot_token_id", {"length": 384, "min": 0, "max": 383, "monotone": True}, None, "hot_token_id max"),
    "vocabulary": ("draft.draft_vocab_size", 512, None, "draft vocabulary 384 in training, 512 served"),
}  # fmt: skip


@pytest.mark.parametrize("case", DEPARTURES)
def test_serving_departs_from_training(export: Export, compare: Compare, case: str) -> None:
    key, actual, expected, words = DEPARTURES[case]
    said = compare(of=served(export.tensors, export.config, RATES).fact(key, actual, expected))
    assert said.verdict == "changed" and said.found.same_draft and "served otherwise than trained" in said.why
    assert words in said.why and any(words in d.text for d in said.found.departures)
    assert any(c.key.startswith(key) for c in said.contract.changes)


def test_a_cause_of_the_served_run_is_a_departure(compare: Compare) -> None:
    sure = CauseDelta(gained=("weights.not_loaded",), sure=("weights.not_loaded",))
    assert "cause weights.not_loaded" in compare(causes=sure).why
    assert compare(causes=CauseDelta(gained=("fc.norm_mismatch",))).verdict == "same"


def test_states_of_another_size_are_a_departure(export: Export, compare: Compare) -> None:
    sizes = {("target_aux", slot): export.states["target_aux", slot] for slot in range(3)}
    assert compare(states={slot: 1.3 * rms for slot, rms in sizes.items()}).verdict == "same"
    said = compare(states={**sizes, ("target_aux", 2): 4.0})
    assert [d.key for d in said.found.departures] == ["hidden.target_aux.2"]
    assert said.verdict == "changed" and "states of slot 2 have an RMS of" in said.why
    said = compare(states={("target_aux", 0): 10.0})
    assert "3 states a position in training, 1 served" in said.why


def test_a_draft_that_is_hardly_accepted_is_no_matter_of_the_text(compare: Compare) -> None:
    said = compare(accepted=2)
    assert said.verdict == "changed" and said.found.first_drafts_lost and said.found.same_draft
    assert "much fewer first drafts are accepted than were right" in said.why


def test_weights_that_were_not_recorded_are_no_same_draft(export: Export, compare: Compare) -> None:
    run = served(export.tensors, export.config, RATES)
    run.keys = {}
    said = compare(of=run)
    assert said.verdict == "changed" and said.found.same_draft is None and "could not be compared" in said.why


def test_runs_of_one_kind_are_compared_as_ever(export: Export, tmp_path: Path) -> None:
    said = diff(export.path, export.path)
    assert said.training is None and said.verdict == "same" and said.facts_same > 20
    path = served(export.tensors, export.config, RATES).write(tmp_path)
    said = diff(path, path)
    assert said.training is None and "training" not in said.to_json()


def test_the_command_tells_it_in_either_order(
    export: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = served(export.tensors, export.config, RATES)
    run.keys["lm_head.weight"]["checksum"] = "0" * 16
    path = run.write(tmp_path)
    assert main(["diff", str(export.path), str(path)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "Training and serving" in text and "A is a validation step of the draft's training, B a server" in text
    assert "trained: fc, layers.0 (10 parameters), norm" in text
    assert "frozen, and equal to the target's: embed_tokens" in text
    assert "frozen, and not the target's: lm_head" in text
    assert "other: lm_head.weight: other values, frozen in training" in text
    assert "first drafts:" in text and "right in training (95 % interval" in text
    assert main(["diff", str(path), str(export.path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["training"]
    assert said["same_draft"] is False and said["run"] == "b"
    assert said["first_drafts"]["training"]["rate"] == pytest.approx(export.rate)
    assert [t["name"] for t in said["tensors"] if t["state"] == "differs"] == ["lm_head.weight"]
