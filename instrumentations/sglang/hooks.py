"""Which hooks stand at a moment: by level, while paused, and once the facts of the first forwards are known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from eagletrace.instrumentations.patching import Hook, Patch, RoundHook, Target, install, resolve
from eagletrace.instrumentations.sglang import aborts, graphs, launch, load, older, results, steps, updates, verdict
from eagletrace.instrumentations.sglang.forward import RunnerForward
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.signatures import of_callable
from eagletrace.instrumentations.sglang.targets import MULTI_LAYER, TARGETS, EngineTarget
from eagletrace.settings import LEVELS

HOOKS: dict[str, Callable[[Target, Session], Hook | RoundHook]] = {
    "scheduler.results": results.Results,
    "scheduler.result_copied": older.CarriedResult,
    "scheduler.abort": aborts.AbortRequest,
    "scheduler.abort_output": aborts.AbortOutput,
    "runner.load_model": load.LoadModel,
    "loader.load_weights": load.LoadWeights,
    "runner.update_disk": updates.WeightsUpdated,
    "runner.update_tensor": updates.WeightsUpdated,
    "runner.update_distributed": updates.WeightsUpdated,
    "runner.update_ipc": updates.WeightsUpdated,
    "updater.update_disk": updates.WeightsUpdated,
    "updater.update_tensor": updates.WeightsUpdated,
    "updater.update_distributed": updates.WeightsUpdated,
    "updater.load_distributed": updates.WeightsUpdated,
    "updater.update_ipc": updates.WeightsUpdated,
    "updater.end": updates.WeightsUpdated,
    "runner.forward": RunnerForward,
    "v2.generate": launch.Generate,
    "v2.draft": launch.Draft,
    "v2.draft_forward": launch.DraftForward,
    "v2.extend_prefill": launch.ExtendPrefill,
    "v2.extend_decode": launch.ExtendDecodeV2,
    "v2.verify": launch.Verify,
    "v1.generate": launch.Generate,
    "v1.draft": launch.Draft,
    "v1.draft_forward": older.DraftForwardOfLists,
    "v1.extend_prefill": launch.ExtendPrefill,
    "v1.extend_decode": launch.ExtendDecodeV1,
    "v1.verify": launch.Verify,
    "v1.verify_tokens": results.VerifyTokens,
    "verify.greedy": verdict.Greedy,
    "verify.greedy_utils": verdict.Greedy,
    "verify.greedy_kernel": verdict.Greedy,
    "verify.sampling_kernel": older.SamplingKernel,
    "verify.sample": verdict.Sample,
    "verify.sample_mixin": verdict.Sample,
    "graph.draft": graphs.DraftReplay,
    "graph.draft_replay": graphs.DraftReplay,
    "graph.extend": graphs.ExtendReplay,
    "graph.extend_replay": graphs.ExtendReplay,
    "graph.capture": graphs.CaptureDraft,
    "graph.capture_batch": graphs.CaptureDraft,
    "multi_layer.generate": launch.Generate,
    "multi_layer.draft": steps.DraftOfSteps,
    "multi_layer.extend_prefill": launch.ExtendPrefill,
    "multi_layer.extend_decode": steps.ExtendDecodeOfSteps,
    "multi_layer.verify": launch.Verify,
    "multi_layer.replay": steps.StepReplay,
    "multi_layer.replay_one": steps.StepReplay,
}

# Never taken away while attached: they run when weights are loaded or updated, and not in a round.
AT_LOAD = (
    "runner.load_model", "loader.load_weights",
    *(name for name, hook in HOOKS.items() if hook is updates.WeightsUpdated),
)  # fmt: skip
# What the counts of chains need at level `contract`, once the first forwards have been seen.
COUNTING = (
    "scheduler.results", "scheduler.abort", "scheduler.abort_output", "v1.generate", "v2.generate",
    "multi_layer.generate", "scheduler.result_copied",
)  # fmt: skip
# The same where the engine counts itself: these run when a request begins, or is aborted.
BEGINNINGS = (
    "scheduler.abort", "scheduler.abort_output", "v1.extend_prefill", "v2.extend_prefill", "multi_layer.extend_prefill",
)  # fmt: skip
# What these see is seen by their neighbours, in rounds of chains of the second worker.
OF_PHASES = ("v2.draft", "v2.verify", "v2.extend_decode")
# The verdict that all requests take which do not sample, and that of the others.
GREEDY = {"verify.greedy", "verify.greedy_utils", "verify.greedy_kernel"}
SAMPLED = ("verify.sample", "verify.sample_mixin")
# A chain's topology is known without looking.
OF_TREES = ("v1.draft_forward", "v2.draft_forward")


class Hooks:
    """The hooks of one process. `follow` makes the wrappers that stand those that are wanted now."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.paused = False
        self.patches: dict[str, Patch] = {}
        self.missing: dict[str, str] = {}
        self._standing: set[str] = set()

    def follow(self) -> None:
        """Install, take away and put back. A missing target is noted, never an error; a worker that the engine did not
        import is not looked at."""
        for target in (*TARGETS, *(t for t in MULTI_LAYER if t.module in sys.modules)):
            if target.name not in HOOKS or target.name in self.missing:
                continue
            wanted, stands = self.wants(target), target.name in self._standing
            if wanted and not stands:
                self._install(target)
            elif stands and not wanted:
                self.patches[target.name].undo()
                self._standing.discard(target.name)

    def _install(self, target: EngineTarget) -> None:
        patch = self.patches.get(target.name)
        if patch is None or not patch.redo():  # for the first time, or around what another tool has put there
            hook = patch.hook if patch is not None else HOOKS[target.name](target, self.session)
            try:
                changed = of_callable(target, resolve(target.path)[2])
                if changed is not None:
                    raise AttributeError(f"its signature is not the expected one: {changed}")
                patch = install(hook, [p.wrapper for p in self.patches.values()])
            except (ImportError, AttributeError) as error:
                self.missing[target.name] = str(error)
                return
            if patch is None:
                return
            self.patches[target.name] = patch
        self._standing.add(target.name)

    def wants(self, target: Target) -> bool:
        """Whether a target is to be hooked at this moment."""
        name, session = target.name, self.session
        if name in AT_LOAD:
            return True
        if self.paused or LEVELS.index(target.level) > LEVELS.index(session.recorder.settings.level):
            return False
        if session.rounds_pass:
            return name in BEGINNINGS or (name == "runner.forward" and not session.first_extend_seen)
        if session.counts_only and session.first_extend_seen:
            return name in COUNTING
        if session.lean and (name in OF_PHASES or (name in SAMPLED and session.samples is False)):
            return False
        return not (session.chain_steps and name in OF_TREES)

    def stands(self, name: str) -> bool:
        """Whether a hook's wrapper is in its place at present, as far as we put it there."""
        return name in self._standing

    def undo(self) -> None:
        """Take all wrappers away, the last first."""
        for name in reversed(list(self.patches)):
            self.patches[name].undo()
        self._standing.clear()

    def calls(self) -> int:
        """Calls of all hooks so far."""
        return sum(patch.hook.calls for patch in self.patches.values())

    def observe_only(self, name: str, instance: Any) -> None:
        """Let a hook pass the calls of all objects but one."""
        if name in self.patches:
            self.patches[name].hook.only = instance

    def paths(self) -> set[str]:
        """Where hooks were installed."""
        return {patch.hook.target.path for patch in self.patches.values()}

    def fired(self) -> set[str]:
        """Targets whose hooks were called."""
        return {name for name, patch in self.patches.items() if patch.hook.calls}


def chain_steps(server_args: Any) -> int:
    """Drafts of a round where all rounds are chains of one length; 0 for trees and for steps that adapt, and in
    releases whose results do not say how many drafts of each request were right (to 0.5.6)."""
    if getattr(server_args, "speculative_eagle_topk", None) != 1 or getattr(server_args, "speculative_adaptive", False):
        return 0
    result = getattr(sys.modules.get("sglang.srt.managers.utils"), "GenerationBatchResult", None)
    if not any(hasattr(result, name) for name in launch.CORRECT_DRAFTS):
        return 0
    return max(0, int(getattr(server_args, "speculative_num_draft_tokens", None) or 0) - 1)
