"""A case of the catalogue served and diagnosed as a user would, and what every fault's diagnosis has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eagletrace.lab import runtime
from eagletrace.lab.faults import case
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.matrix import ALL_LAYERS, eagletrace
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.pair import prompts
from eagletrace.lab.run import PROMPTS, LabResult, lab_run
from eagletrace.store import Run, open_run

torch = pytest.importorskip("torch")
ROUNDS = 120
TEXTS = 4
"""Answers whose tokens are compared with the target's own."""


class Diagnosed(NamedTuple):
    """A lab run, what `diagnose --json` says of it with draft and target, and its exit status."""

    result: LabResult
    diagnosis: dict[str, Any]
    status: int


def diagnosed(name: str, folder: Path) -> Diagnosed:
    """Serve a case with hidden states recorded, and diagnose its run."""
    options = ServeOptions(fault=name, dir=folder, level="tensors", extra_env=ALL_LAYERS)
    result = lab_run(options, LoadOptions(rounds=ROUNDS))
    assert result.run is not None, result.reason
    done = command("diagnose", result)
    assert done.stdout, done.stderr
    return Diagnosed(result, json.loads(done.stdout), done.returncode)


def command(name: str, result: LabResult) -> subprocess.CompletedProcess[str]:
    """`eagletrace NAME RUN --draft … --target … --json`."""
    line = [sys.executable, "-m", "eagletrace.cli", name, str(result.run), "--json"]
    line += ["--draft", str(result.draft), "--target", str(result.target)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def compared(a: LabResult, b: LabResult) -> tuple[dict[str, Any], int]:
    """What `eagletrace diff` of two lab runs says, each replayed from what it was served with; and its exit status."""
    assert a.run is not None and b.run is not None
    models = [part for result in (a, b) for part in ("--draft", result.draft, "--target", result.target)]
    return eagletrace("diff", a.run, b.run, *models)


def opened(served: Diagnosed) -> Run:
    """The run that a case left."""
    assert served.result.run is not None
    return open_run(served.result.run)


def facts_of(run: Run) -> dict[str, Any]:
    """What `contract` says, by key."""
    return {key: json.loads(actual or "null") for key, actual in run.execute("SELECT key, actual FROM contract")}


def status_of(diagnosis: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Status of each check whose id begins so."""
    return {check["id"]: check["status"] for check in diagnosis["checks"] if check["id"].startswith(prefix)}


def assert_counts_are_the_engine_s(result: LabResult) -> None:
    """Rounds and accepted drafts of the trace are those that the engine reported."""
    assert result.run is not None
    with open_run(result.run) as run:
        ((rounds, accepted),) = run.execute("SELECT count(*), sum(accepted) FROM rounds")
    assert rounds == sum(answer.rounds for answer in result.answers) > 0
    assert accepted == sum(answer.meta_info["spec_num_correct_drafts"] for answer in result.answers)


def assert_tokens_are_the_target_s(result: LabResult, target: Path) -> None:
    """The first answers are what the target says greedily without an engine: nothing changed a token."""
    from tokenizers import Tokenizer

    from eagletrace.lab.pair.evaluate import load_target
    from eagletrace.lab.pair.rollout import continue_greedily

    model, tokenizer = load_target(target), Tokenizer.from_file(str(target / "tokenizer.json"))
    for prompt, answer in zip(prompts(PROMPTS), result.answers[:TEXTS], strict=False):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        said = continue_greedily(model, ids, ids.shape[1] + len(answer.output_ids))
        assert said[0, ids.shape[1] :].tolist() == answer.output_ids


def named(name: str, result: LabResult, diagnosis: dict[str, Any], *, dies: bool = False) -> None:
    """The fault's cause is the first, with evidence and a fix; the server died if it had to, and nothing names it."""
    assert diagnosis["verdict"] == "fault"
    assert diagnosis["causes"][0]["id"] in case(name).expected
    assert diagnosis["causes"][0]["evidence"]
    assert diagnosis["causes"][0]["fix"]
    assert result.engine_died == dies
    assert not dies or "its log ends" in result.reason
    assert_neutral(name, result)


def proved(diagnosis: dict[str, Any], healthy_accept_length: float) -> None:
    """The replay drafts what was served, and regains what was lost."""
    proof = diagnosis["causes"][0]["proof"]
    assert proof["reproduces_served"] >= 0.98
    assert proof["repaired_accept_length"] >= 0.95 * healthy_accept_length
    assert proof["served_accept_length"] < proof["repaired_accept_length"]


def assert_neutral(name: str, result: LabResult) -> None:
    """No file of the run contains the name of its fault or of a patch, nor does a path of what was served."""
    assert result.run is not None
    assert name not in str(result.run) + str(result.draft)
    patch = case(name).runtime
    names = [name] if patch is None else [name, runtime.patches()[patch].name]
    for file in (f for f in result.run.rglob("*") if f.is_file()):
        content = file.read_bytes()
        assert not any(word.encode() in content for word in names), file
