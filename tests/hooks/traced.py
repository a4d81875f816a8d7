"""Hooks of the fake engine, installed as in a server, with a recorder whose rows can be read."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from eagletrace.instrumentations.patching import Observer, Patch, install
from eagletrace.instrumentations.sglang import graphs, tensors
from eagletrace.instrumentations.sglang.forward import watch_fusion
from eagletrace.instrumentations.sglang.hooks import HOOKS, OF_PHASES, OF_TREES, SAMPLED
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.steady import understand
from eagletrace.instrumentations.sglang.targets import BY_NAME
from eagletrace.record.recorder import Recorder
from eagletrace.settings import Settings
from tests.hooks import fake_engine
from tests.hooks.fake_engine import Engine
from tests.hooks.no_waiting import Guard

V2, V1, STEPS = "EAGLEWorkerV2", "EAGLEWorker", "MultiLayerEagle"
COMMON = {
    "scheduler.results": "Scheduler.process_batch_result", "runner.forward": "ModelRunner.forward",
    "verify.greedy": "verify_tree_greedy_func", "verify.sample": "eagle_sample",
    "graph.draft": "EAGLEDraftCudaGraphRunner.execute", "graph.extend": "EAGLEDraftExtendCudaGraphRunner.execute",
    "graph.capture": "EAGLEDraftCudaGraphRunner.capture_one_shape",
    "scheduler.abort": "Scheduler.abort_request", "scheduler.abort_output": "Scheduler.send_abort_output",
}  # fmt: skip
OLDER = {
    "scheduler.result_copied": "GenerationBatchResult.from_forward_batch_output",
    "verify.sample_mixin": "EagleVerifyInput.sample", "verify.greedy_kernel": "verify_tree_greedy",
    "verify.sampling_kernel": "tree_speculative_sampling_target_only",
}  # fmt: skip
PLACES = {
    "v2": COMMON | {
        "v2.generate": f"{V2}.forward_batch_generation", "v2.verify": f"{V2}.verify",
        "v2.draft": "EagleDraftWorker.draft", "v2.draft_forward": "_Drafter.draft_forward",
        "v2.extend_prefill": "EagleDraftWorker._draft_extend_for_prefill",
        "v2.extend_decode": "EagleDraftWorker._draft_extend_for_decode",
    },
    "v1": COMMON | {
        "v1.generate": f"{V1}.forward_batch_generation", "v1.verify": f"{V1}.verify", "v1.draft": f"{V1}.draft",
        "v1.draft_forward": "_Drafter.draft_forward", "v1.extend_prefill": f"{V1}.forward_draft_extend",
        "v1.extend_decode": f"{V1}.forward_draft_extend_after_decode", "v1.verify_tokens": "EagleVerifyInput.verify",
    },
    "multi_layer": COMMON | {
        "multi_layer.generate": f"{STEPS}WorkerV2.forward_batch_generation",
        "multi_layer.verify": f"{STEPS}WorkerV2.verify", "multi_layer.draft": f"{STEPS}DraftWorker.draft",
        "multi_layer.extend_prefill": f"{STEPS}DraftWorker._draft_extend_for_prefill",
        "multi_layer.extend_decode": f"{STEPS}DraftWorker._draft_extend_for_decode",
        "multi_layer.replay": f"{STEPS}MultiStepDraftExtendCudaGraphRunner.replay",
    },
}  # fmt: skip


@dataclass
class Traced:
    """An engine under observation."""

    engine: Engine
    session: Session
    folder: Path
    hooks: dict[str, Observer] = field(default_factory=dict[str, Observer])

    def ready(self) -> None:
        """The scheduler is built."""
        watch_fusion(self.session)
        graphs.captured(self.session)
        tensors.follow(self.session)
        self.session.serving = True

    def flushed(self) -> None:
        """As the attachment does on the recorder's thread."""
        understand(self.session)
        self.session.deferred.compute()

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What was written of a table; ends the recording."""
        self.session.recorder.stop()
        files = sorted((self.folder / table).glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def check(self) -> None:
        """No hook failed."""
        assert {n: h.last_error for n, h in self.hooks.items() if h.errors} == {}


def session_of(engine: Engine, folder: Path, settings: Settings) -> Session:
    """The shared state, as loading would have left it."""
    recorder = Recorder(folder, settings, {"host": "h", "pid": 1, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}, {})
    session = Session(recorder, "0", SimpleNamespace())
    sizes = engine.sizes
    session.worker, session.draft_runner = engine.worker, engine.draft_runner
    session.later_runners = getattr(engine.draft_side, "draft_runner_list", [])[1:]
    session.target_runner = engine.target_runner
    session.draft_facts = {"fc_in": sizes.states * sizes.hidden, "target_hidden_size": sizes.hidden, "eagle3": True}
    session.draft_id_or_zero = torch.arange(sizes.vocab, device=sizes.device) * (
        torch.arange(sizes.vocab, device=sizes.device) < sizes.draft_vocab
    )
    ids = np.arange(sizes.vocab)
    recorder.draft_id_of = np.where(ids < sizes.draft_vocab, ids, -1)
    return session


@contextmanager
def traced(
    engine: Engine, folder: Path, *, guard: Guard | None = None, record: bool = True, lean: bool = False,
    **settings: Any,
) -> Generator[Traced]:  # fmt: skip
    """Install the hooks, `lean` without those of the phases; with a guard, it watches each of them."""
    folder.mkdir(exist_ok=True)
    settings = {"hidden_every": 1} | settings
    session = session_of(engine, folder, Settings(**settings))
    if record:
        session.recorder.start()
    traced = Traced(engine, session, folder)
    if lean:
        session.lean, session.samples, session.deferred.hands_over = True, False, True
        session.recorder.on_flush = traced.flushed
    patches: list[Patch] = []
    for name, place in (PLACES[engine.family] | (OLDER if engine.older else {})).items():
        if lean and name in (*OF_PHASES, *OF_TREES, *SAMPLED):
            continue
        hook = HOOKS[name](replace(BY_NAME[name], path=f"{fake_engine.__name__}:{place}"), session)
        if guard is not None:
            guard.watch(name, hook)
        patch = install(hook)
        assert patch is not None
        patches.append(patch)
        traced.hooks[name] = hook
    try:
        yield traced
    finally:
        for undo in reversed(session.undo):
            undo()
        for patch in reversed(patches):
            patch.undo()
        session.recorder.stop()


def served(make: Callable[[], Engine], folder: Path, **settings: Any) -> Traced:
    """A prefill and rounds of an engine, checked: weights and inputs come from one seed, whatever the graphs."""
    torch.manual_seed(3)
    engine = make()
    with traced(engine, folder, **settings) as found:
        if engine.sizes.graph:
            engine.draft_side.init_cuda_graphs()
        found.ready()
        torch.manual_seed(4)
        engine.serve()
    found.check()
    return found
