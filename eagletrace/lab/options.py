"""What to serve in the lab, and how that becomes an engine, flags, environment and model folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from eagletrace.errors import EagletraceError, UnknownNameError
from eagletrace.lab.engines import Engine, engine
from eagletrace.lab.faults import Case, Prepared, case, draft_folder, healthy, prepare, variant_beside
from eagletrace.lab.pair import PAIRS, shipped_pair
from eagletrace.lab.runtime import environment

DEFAULT_DIR = Path("eagletrace-runs")
MODELS = "lab-models"
"""Folder beside the runs that holds the drafts served, under neutral names."""


@dataclass(frozen=True)
class ServeOptions:
    """One lab server: a case of the catalogue, on the shipped pair or on a draft and a target of your own.

    With `fault`, the case's changes are made to a copy of the draft and target given; a case that needs
    another variant of the draft takes it from the folder of that name beside `draft`.

    `pair` names a pair that ships (default: the case's own, without one `llama`); `pair_dir` holds another
    (`target/`, `drafts/<variant>/`), and `pair` says then which kind it is of. `topk`, `steps`
    and `draft_tokens` default to a chain of 3 drafts. `tp` ranks share each model, `dp` ranks have one each.
    `tracing` is `on`, `off` (the server gets no EAGLETRACE variable) or `inherit` (those of the caller);
    with `on` the caller's are completed by EAGLETRACE, EAGLETRACE_DIR and EAGLETRACE_LEVEL.
    """

    fault: str | None = None
    pair: str | None = None
    pair_dir: Path | None = None
    draft: Path | None = None
    target: Path | None = None
    engine: str | None = None
    worker: str | None = None
    topk: int = 1
    steps: int = 3
    draft_tokens: int | None = None
    tp: int = 1
    dp: int = 1
    dir: Path | None = None
    level: str | None = None
    seed: int = 0
    tracing: Literal["on", "off", "inherit"] = "on"
    extra_env: Mapping[str, str] = field(default_factory=dict[str, str])
    extra_flags: Mapping[str, str | int | float | bool | None] = field(
        default_factory=dict[str, "str | int | float | bool | None"]
    )


@dataclass(frozen=True)
class Serving:
    """Everything a `LabServer` is started with, and where its run will lie."""

    case: Case
    engine: Engine
    flags: Mapping[str, str | int | float | bool | None]
    env: Mapping[str, str]
    draft: Path
    target: Path
    dir: Path
    update: Path | None = None


def chosen_case(options: ServeOptions) -> Case:
    """The case to serve; EagletraceError where options contradict it."""
    if options.pair is not None and options.pair not in PAIRS:
        raise UnknownNameError("pair", options.pair, PAIRS)
    if options.fault is None:
        base = replace(healthy(options.pair or PAIRS[0]), worker="")
        version = options.engine or base.engine
        return replace(base, engine=version, worker=engine(version).worker(options.worker))
    chosen = case(options.fault)
    for name, given, own in (
        ("engine", options.engine, chosen.engine),
        ("worker", options.worker, chosen.worker),
        ("pair", options.pair, chosen.pair),
    ):
        if given is not None and given != own:
            raise EagletraceError(f"--fault {chosen.name} sets the {name} itself; leave --{name} out")
    return chosen


def _models(options: ServeOptions, chosen: Case, runs: Path) -> Prepared:
    """The folders: those of a case, written under neutral names, or the user's own as they are."""
    pair = options.pair_dir or shipped_pair(chosen.pair)
    target = options.target or pair / "target"
    draft = options.draft or draft_folder(pair, chosen.variant)
    for folder in (draft, target):
        if not (folder / "config.json").is_file():
            raise EagletraceError(f"{folder} is no model folder: it has no config.json")
    if options.draft is not None and options.fault is None:
        return Prepared(draft.resolve(), target.resolve())
    prepared = prepare(chosen, variant_beside(draft, chosen.variant), target, runs / MODELS)
    return replace(prepared, draft=prepared.draft.resolve(), target=prepared.target.resolve())


def _tracing(options: ServeOptions, runs: Path) -> dict[str, str]:
    """The tracer's variables, and nothing else that it could learn from."""
    if options.tracing == "off":
        return {}
    given = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("EAGLETRACE") and not name.startswith("EAGLETRACE_LAB_")
    }
    given["EAGLETRACE_DIR"] = str(runs)
    if options.tracing == "on":
        given["EAGLETRACE"] = "1"
    if options.level:
        given["EAGLETRACE_LEVEL"] = options.level
    return given


def _writable(folder: Path) -> Path:
    """The folder, created; a place of its own for models when it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise EagletraceError(f"cannot write to {folder}: {error.strerror}; choose another --dir") from error


def serving(options: ServeOptions) -> Serving:
    """Resolve options: write the draft, choose engine and worker, and put flags and environment together."""
    chosen = chosen_case(options)
    spec = engine(chosen.engine)
    if options.topk > 1 and spec.version == "0.5.9" and chosen.worker == "v2":
        raise EagletraceError("SGLang 0.5.9's v2 worker drafts chains only; use --worker v1 or --topk 1")
    runs = _writable((options.dir or Path(os.environ.get("EAGLETRACE_DIR") or DEFAULT_DIR)).resolve())
    models = _models(options, chosen, runs)
    flags: dict[str, str | int | float | bool | None] = {
        **spec.flags,
        "model-path": str(models.target),
        "served-model-name": "lab",
        "random-seed": options.seed,
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": str(models.draft),
        "speculative-num-steps": options.steps,
        "speculative-eagle-topk": options.topk,
        "speculative-num-draft-tokens": options.draft_tokens or _draft_tokens(options),
        **({"tp": options.tp} if options.tp > 1 else {}),
        **({"dp": options.dp} if options.dp > 1 else {}),
        **({"speculative-token-map": str(models.token_map.resolve())} if models.token_map else {}),
        **chosen.flags,
        **options.extra_flags,
    }
    env = {
        **spec.environment(chosen.worker), **_ranks(options), **_tracing(options, runs), **chosen.env,
        **options.extra_env,
    }  # fmt: skip
    if chosen.runtime is not None:
        env |= environment(chosen.runtime, env["PYTHONPATH"])
    return Serving(
        case=chosen, engine=spec, flags=flags, env=env, draft=models.draft, target=models.target, dir=runs,
        update=models.update,
    )  # fmt: skip


def _ranks(options: ServeOptions) -> dict[str, str]:
    """What several ranks need on a CPU: a core each (SGLang wants a NUMA node each), and no NCCL.

    SGLang 0.5.23 starts a communicator on whatever NCCL library torch was built for, with or without a GPU.
    """
    count = options.tp * options.dp
    if count == 1:
        return {}
    cores = sorted(os.sched_getaffinity(0))
    return {
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(count)),
        "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",
    }


def _draft_tokens(options: ServeOptions) -> int:
    """Nodes of the verify tree, the root included: a chain has steps + 1, a tree by default 8."""
    if options.topk == 1:
        return options.steps + 1
    return max(options.steps + 1, min(8, 1 + options.topk + (options.steps - 1) * options.topk**2))
