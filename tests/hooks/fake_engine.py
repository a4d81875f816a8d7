"""An engine with SGLang's names and shapes and none of its work: drives the hooks of all worker families.

Names of classes, methods, attributes and arguments are SGLang's (0.5.9 and 0.5.23; `test_graph_names.py` reads them in
the installed sources). Tensors are random; nothing of the engine waits for the device, so that what waits is ours.
Shapes: bs requests, S steps, K branches, D nodes, V target vocabulary, Vd draft vocabulary, H hidden size, A states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from tests.hooks.graph_replay import GRAPHS


@dataclass
class Sizes:
    """Shapes of a run. `bs` is padded to `captured` where a graph runs."""

    bs: int = 3
    steps: int = 3
    topk: int = 1
    vocab: int = 23
    draft_vocab: int = 17
    hidden: int = 8
    states: int = 3
    captured: tuple[int, ...] = (4, 2, 1)
    device: str = "cpu"
    graph: bool = False
    graph_class: Any = None  # the device's, unless given
    buffer_width: int | None = None  # of the draft extend's graph, if it is wrong

    @property
    def nodes(self) -> int:
        return self.steps + 1 if self.topk == 1 else self.steps * self.topk


# A tree of K = 2 and S = 3: candidates 0 and 1 are depth 1, 2 and 4 continue them, 6 continues 2.
TREE = {
    "parents": [-1, 0, 1, 2, 4], "selected": [0, 1, 2, 4, 6],
    "next_token": [1, 3, 4, 5, -1, -1], "next_sibling": [-1, 2, -1, -1, -1, -1],
}  # fmt: skip


class Req:
    """A request."""

    def __init__(self, rid: str) -> None:
        self.rid, self.origin_input_ids = rid, [5, 6, 7]
        self.output_ids: list[int] = []
        self.sampling_params = SimpleNamespace(temperature=0.0, top_k=1, max_new_tokens=64)
        self.grammar = self.multimodal_inputs = None
        self.finished_reason: Any = None
        self.cached_tokens, self.spec_verify_ct, self.is_retracted = 0, 0, False

    def finished(self) -> bool:
        return self.finished_reason is not None


@dataclass
class Batch:
    """A ScheduleBatch."""

    reqs: list[Req]
    extend: bool = False
    spec_info: Any = None
    extend_num_tokens: int = 9

    @property
    def extend_lens(self) -> list[int]:
        """Of a prefill: of prompts as a whole."""
        return [len(req.origin_input_ids) for req in self.reqs]

    @property
    def prefix_lens(self) -> list[int]:
        return [req.cached_tokens for req in self.reqs]

    @property
    def forward_mode(self) -> ForwardMode:
        return ForwardMode.EXTEND if self.extend else ForwardMode.DECODE


class ForwardMode(Enum):
    EXTEND = 1
    DECODE = 2

    def is_extend(self) -> bool:
        return self is ForwardMode.EXTEND


@dataclass
class ForwardBatch:
    """What a runner's forward is given."""

    spec_info: Any
    positions: torch.Tensor | None
    input_ids: torch.Tensor
    batch_size: int
    extend_seq_lens_cpu: list[int] | None = None
    wanted: torch.Tensor | list[int] | None = None  # the rows whose logits are asked for; all of them without


@dataclass
class LogitsProcessorOutput:
    next_token_logits: torch.Tensor
    hidden_states: torch.Tensor | None


class DraftModel(nn.Module):
    """A draft with a fusion layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = nn.Linear(sizes.states * sizes.hidden, sizes.hidden, bias=False, device=sizes.device)
        self.head = nn.Linear(sizes.hidden, sizes.draft_vocab, bias=False, device=sizes.device)

    def forward(self, hidden: torch.Tensor) -> LogitsProcessorOutput:
        if hidden.shape[-1] != self.sizes.hidden:
            hidden = self.fc(hidden)
        return LogitsProcessorOutput(self.head(hidden), hidden)

    def replayed(self, hidden: torch.Tensor) -> LogitsProcessorOutput:
        """The same from a captured prefill: modules are not called."""
        if hidden.shape[-1] != self.sizes.hidden:
            hidden = hidden @ self.fc.weight.t()
        return LogitsProcessorOutput(hidden @ self.head.weight.t(), hidden)


class TargetLayer(nn.Module):
    """A decoder layer that adds what it is given to the residual, as fused norms do: in place."""

    def forward(
        self, positions: Any, hidden_states: torch.Tensor, forward_batch: Any, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = hidden_states.clone() if residual is None else residual.add_(hidden_states)
        return residual.tanh(), residual


class FinalNorm(nn.Module):
    """The norm after the last layer."""

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return hidden_states


class TargetModel(nn.Module):
    """A target whose aux states are the inputs of its layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(TargetLayer() for _ in range(sizes.states))
        self.model.norm = FinalNorm()

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        hidden, residual, inputs = embeddings, None, list[torch.Tensor]()
        for layer in self.model.layers:  # pyright: ignore[reportGeneralTypeIssues]
            inputs.append(hidden.clone() if residual is None else hidden + residual)
            hidden, residual = layer(None, hidden, None, residual)
        self.model.norm(hidden, residual)  # pyright: ignore[reportCallIssue]
        return torch.cat(inputs, dim=-1)


class ModelRunner:
    """`draft_runner` of the second worker, `model_runner` of the first; and the target's."""

    def __init__(self, sizes: Sizes, model: Any = None) -> None:
        self.model: Any = model or DraftModel(sizes)
        self.graph_prefill = False
        self.pool: torch.Tensor | None = None  # of graphs: where they leave their logits

    def forward(self, forward_batch: ForwardBatch) -> Any:
        if isinstance(self.model, TargetModel):
            states = self.model(forward_batch.spec_info.hidden_states)
            return SimpleNamespace(logits_output=LogitsProcessorOutput(forward_batch.spec_info.logits, states))
        run = self.model.replayed if self.graph_prefill else self.model
        output = run(forward_batch.spec_info.hidden_states)
        if forward_batch.wanted is not None:
            wanted, logits = forward_batch.wanted, output.next_token_logits
            output.next_token_logits = rows_of(logits, wanted) if isinstance(wanted, list) else logits[wanted]
        if self.graph_prefill and self.pool is not None:
            self.pool[: output.next_token_logits.shape[0]] = output.next_token_logits
            output.next_token_logits = self.pool[: output.next_token_logits.shape[0]]
        return SimpleNamespace(logits_output=output, can_run_graph=self.graph_prefill)


@dataclass
class EagleVerifyInput:
    """The drafted tree."""

    engine: Engine
    draft_token: torch.Tensor  # [bs * D]
    positions: torch.Tensor
    retrieve_next_token: torch.Tensor  # [bs, D]
    retrieve_next_sibling: torch.Tensor
    topk: int

    def verify(self, batch: Batch, logits_output: LogitsProcessorOutput) -> Any:
        """The first worker's: decides and keeps tokens."""
        if self.engine.older:
            _by_kernels(self, len(batch.reqs), logits_output)
        else:
            eagle_sample(self, batch, logits_output)
        for req in batch.reqs:
            req.output_ids += [7, 8]
        return SimpleNamespace(accept_length_per_req_cpu=[1] * len(batch.reqs))

    def sample(self, batch: Batch, logits_output: LogitsProcessorOutput) -> tuple[Any, ...]:
        """The second worker's, as a method to 0.5.13."""
        return _decided(self, len(batch.reqs), logits_output)


def verify_tree_greedy_func(**arguments: Any) -> tuple[Any, ...]:
    """Gives the path `root, first child`."""
    candidates: torch.Tensor = arguments["candidates"]
    bs, nodes = candidates.shape
    accept_index = torch.full((bs, nodes), -1, dtype=torch.int32, device=candidates.device)
    accept_index[:, 0] = torch.arange(bs, device=candidates.device) * nodes
    accept_index[:, 1] = accept_index[:, 0] + 1
    return arguments["target_predict"], accept_index, accept_index


def eagle_sample(verify_input: EagleVerifyInput, batch: Batch, logits_output: LogitsProcessorOutput) -> tuple[Any, ...]:
    """Greedy through `verify_tree_greedy_func`, else its own."""
    return _decided(verify_input, len(batch.reqs), logits_output)


def _decided(verify_input: EagleVerifyInput, bs: int, logits_output: LogitsProcessorOutput) -> tuple[Any, ...]:
    engine = verify_input.engine
    candidates = verify_input.draft_token.reshape(bs, -1)
    if engine.greedy:
        predict = logits_output.next_token_logits.argmax(-1).reshape(bs, -1)
        _, accept_index, lengths = verify_tree_greedy_func(
            candidates=candidates, target_predict=predict, retrieve_next_token=verify_input.retrieve_next_token,
            retrieve_next_sibling=verify_input.retrieve_next_sibling,
        )  # fmt: skip
    else:
        predict = candidates.clone()
        accept_index = lengths = torch.arange(bs, device=candidates.device)[:, None] * candidates.shape[1]
    return predict, lengths, accept_index.to(torch.int32)


def verify_tree_greedy(**arguments: Any) -> None:
    """The compiled kernel of older releases; writes in place."""


def tree_speculative_sampling_target_only(**arguments: Any) -> None:
    """Another."""


def _by_kernels(verify_input: EagleVerifyInput, bs: int, logits_output: LogitsProcessorOutput) -> None:
    candidates = verify_input.draft_token.reshape(bs, -1)
    logits = logits_output.next_token_logits
    given = {
        "candidates": candidates, "predicts": candidates.to(torch.int32).flatten(),
        "accept_index": (torch.arange(bs, device=candidates.device)[:, None] * candidates.shape[1]).to(torch.int32),
        "retrive_next_token": verify_input.retrieve_next_token,
        "retrive_next_sibling": verify_input.retrieve_next_sibling,
    }  # fmt: skip
    if verify_input.engine.greedy:
        verify_tree_greedy(**given, target_predict=logits.argmax(-1).reshape(bs, -1))
    else:
        tree_speculative_sampling_target_only(**given, target_probs=logits.softmax(-1).reshape(*candidates.shape, -1))


class _GraphRunner:
    """What the two graph runners have in common: static inputs, and a graph for each captured batch size."""

    def __init__(self, eagle_worker: Any) -> None:
        self.eagle_worker = eagle_worker
        self.model_runner = getattr(eagle_worker, "draft_runner", None) or eagle_worker.model_runner
        self.sizes: Sizes = eagle_worker.engine.sizes
        self.speculative_num_steps, self.topk = self.sizes.steps, self.sizes.topk
        self.capture_bs = list(self.sizes.captured)
        self.bs = self.raw_bs = 0
        self.graphs: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}

    @torch.no_grad()
    def capture(self) -> None:
        for size in self.capture_bs:
            self.capture_one_shape(size, None)

    def capture_one_shape(self, size: int, forward: Any) -> None:
        raise NotImplementedError

    def _captured(self, size: int, run_once: Any) -> None:
        for _ in range(2):
            run_once()
        self.graphs[size] = (self.sizes.graph_class or GRAPHS[self.sizes.device])()
        self.outputs[size] = self.graphs[size].capture(run_once)

    def _replayed(self, raw: int) -> Any:
        self.raw_bs, self.bs = raw, min(n for n in self.capture_bs if n >= raw)
        self.graphs[self.bs].replay()
        return self.outputs[self.bs]

    def overwrite(self) -> None:
        """What the graphs of a pool do to each other's outputs."""
        for output in self.outputs.values():
            for tensor in tree_leaves(vars(output) if isinstance(output, LogitsProcessorOutput) else output):
                if isinstance(tensor, torch.Tensor):
                    tensor.fill_(7)


class EAGLEDraftCudaGraphRunner(_GraphRunner):
    """Draft steps."""

    def __init__(self, eagle_worker: Any) -> None:
        super().__init__(eagle_worker)
        rows, device = max(self.capture_bs), self.sizes.device
        self.buffers = SimpleNamespace(
            hidden_states=torch.zeros(rows, self.sizes.hidden, device=device),
            positions=torch.zeros(rows * self.topk, dtype=torch.int64, device=device),
        )
        self.capture()

    def capture_one_shape(self, size: int, forward: Any) -> None:
        spec_info = SimpleNamespace(hidden_states=self.buffers.hidden_states[:size])
        positions = self.buffers.positions[: size * self.topk]
        forward_batch = ForwardBatch(spec_info, positions, positions, size)

        def run_once() -> Any:
            kept = spec_info.hidden_states
            out = self.eagle_worker.draft_forward(forward_batch)
            spec_info.hidden_states = kept
            positions.sub_(self.speculative_num_steps - 1)
            return out

        self._captured(size, run_once)

    def execute(self, forward_batch: ForwardBatch) -> tuple[Any, ...]:
        raw = forward_batch.batch_size
        assert forward_batch.positions is not None
        self.buffers.hidden_states[:raw].copy_(forward_batch.spec_info.hidden_states)
        self.buffers.positions[: raw * self.topk].copy_(forward_batch.positions)
        return tuple(t[:raw] if t is not None else None for t in self._replayed(raw))


class EAGLEDraftExtendCudaGraphRunner(_GraphRunner):
    """Draft extend; selects one row of each request before the head, as 0.5.20 and later do."""

    def __init__(self, eagle_worker: Any) -> None:
        super().__init__(eagle_worker)
        sizes = self.sizes
        width = sizes.buffer_width or sizes.states * sizes.hidden
        rows = max(self.capture_bs) * sizes.nodes
        self.buffers = SimpleNamespace(
            hidden_states=torch.zeros(rows, width, device=sizes.device),
            select_index=torch.zeros(max(self.capture_bs), dtype=torch.int64, device=sizes.device),
        )
        self.capture()

    def capture_one_shape(self, size: int, forward: Any) -> None:
        sizes = self.sizes
        hidden = self.buffers.hidden_states[: size * sizes.nodes]
        index = self.buffers.select_index[:size]

        def run_once() -> LogitsProcessorOutput:
            rows = hidden[:, : sizes.states * sizes.hidden]
            return self.model_runner.model.forward(rows.index_select(0, index))

        self._captured(size, run_once)

    def execute(self, forward_batch: ForwardBatch, select_index: torch.Tensor) -> LogitsProcessorOutput:
        given, static = forward_batch.spec_info.hidden_states, self.buffers.hidden_states
        if given.shape[1] == static.shape[1]:
            static[: given.shape[0]].copy_(given)
        self.buffers.select_index[: forward_batch.batch_size].copy_(select_index)
        out = self._replayed(forward_batch.batch_size)
        raw = forward_batch.batch_size
        return LogitsProcessorOutput(out.next_token_logits[:raw], out.hidden_states[:raw].clone())


def rows_of(tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Some rows."""
    return torch.stack([tensor[row] for row in rows]) if rows else tensor[:0]


def _ends(batch: Batch) -> list[int]:
    return [sum(batch.extend_lens[: row + 1]) - 1 for row in range(len(batch.reqs))]


class _Drafter:
    """Drafting, in both families."""

    engine: Engine

    def _forward_batch(self, hidden: torch.Tensor, rows: int, bs: int) -> ForwardBatch:
        positions = torch.arange(rows, device=hidden.device) + 10
        lens = [hidden.shape[0] // bs] * bs if bs else []
        ids = torch.arange(hidden.shape[0], dtype=torch.int32, device=hidden.device)
        return ForwardBatch(SimpleNamespace(hidden_states=hidden), positions, ids, bs, lens)

    def _draft(self, batch: Batch, runner: Any) -> EagleVerifyInput:
        sizes, bs = self.engine.sizes, len(batch.reqs)
        forward_batch = self._forward_batch(batch.spec_info.hidden_states, bs * sizes.topk, bs)
        out = runner.execute(forward_batch) if runner is not None else self.draft_forward(forward_batch)
        if runner is not None:
            self.engine.draft_side.cuda_graph_runner_for_draft_extend.overwrite()
        child = torch.full((bs, sizes.nodes), -1, dtype=torch.int64, device=sizes.device)
        sibling = torch.full_like(child, -1)
        if sizes.topk == 1:
            child[:, :-1] = torch.arange(1, sizes.nodes, device=sizes.device)
        else:
            child, sibling = self.engine.tree["next_token"], self.engine.tree["next_sibling"]
        tokens = torch.cat([out[2][:, :1], out[2]], dim=1)
        if runner is not None:
            runner.overwrite()
        return EagleVerifyInput(
            self.engine, tokens.reshape(-1), torch.arange(bs * sizes.nodes, device=sizes.device), child,
            sibling, sizes.topk,
        )  # fmt: skip

    def draft_forward(self, forward_batch: ForwardBatch) -> tuple[Any, ...]:
        sizes, bs = self.engine.sizes, forward_batch.batch_size
        runner: Any = getattr(self, "draft_runner", None) or self.model_runner  # type: ignore[attr-defined]
        hidden = forward_batch.spec_info.hidden_states.repeat_interleave(sizes.topk, dim=0)
        tokens: list[torch.Tensor] = [torch.zeros(bs, 1, dtype=torch.int64, device=sizes.device)]
        for _ in range(sizes.steps - 1):
            forward_batch.spec_info.hidden_states = hidden
            output = runner.forward(forward_batch).logits_output
            hidden = output.hidden_states
            tokens.append(output.next_token_logits.argmax(-1).view(bs, -1)[:, :1])
            assert forward_batch.positions is not None
            forward_batch.positions.add_(1)
        drafted = sizes.nodes - 1
        if sizes.topk == 1:
            selected = torch.arange(drafted, device=sizes.device).expand(bs, -1)
            parents = torch.arange(-1, sizes.steps - 1, device=sizes.device).expand(bs, -1)
        else:
            parents, selected = (self.engine.tree[n][:1].expand(bs, -1) for n in ("parents", "selected"))
        tokens = [*tokens, *[tokens[-1]] * drafted][:drafted]
        return parents.clone(), selected.clone(), torch.cat(tokens, dim=1), None

    def _last(self, output: LogitsProcessorOutput, batch: Batch) -> LogitsProcessorOutput:
        """Logits of each request's last token."""
        output.next_token_logits = rows_of(output.next_token_logits, _ends(batch))
        return output

    def _extend(self, hidden: torch.Tensor, rows: int) -> LogitsProcessorOutput:
        runner: Any = getattr(self, "draft_runner", None) or self.model_runner  # type: ignore[attr-defined]
        return runner.forward(self._forward_batch(hidden, hidden.shape[0], rows)).logits_output


class EagleDraftWorker(_Drafter):
    """The second worker's draft side."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.draft_runner = ModelRunner(engine.sizes)
        self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = None

    def init_cuda_graphs(self) -> None:
        self.cuda_graph_runner = EAGLEDraftCudaGraphRunner(self)
        self.cuda_graph_runner_for_draft_extend = EAGLEDraftExtendCudaGraphRunner(self)

    def draft(self, batch: Batch) -> EagleVerifyInput:
        return self._draft(batch, self.cuda_graph_runner)

    def _draft_extend_for_prefill(self, batch: Batch, target_hidden_states: torch.Tensor, next_token_ids: Any) -> Any:
        return self._last(self._extend(target_hidden_states, len(batch.reqs)), batch)

    def _draft_extend_for_decode(self, batch: Batch, batch_result: Any) -> None:
        bs, nodes = len(batch.reqs), self.engine.sizes.nodes
        hidden = batch_result.logits_output.hidden_states
        index = torch.arange(bs, device=hidden.device) * nodes
        if self.cuda_graph_runner_for_draft_extend is not None:
            forward_batch = self._forward_batch(hidden, bs * nodes, bs)
            output = self.cuda_graph_runner_for_draft_extend.execute(forward_batch, index)
        else:
            output = self._extend(hidden, bs)
            output.next_token_logits = output.next_token_logits[index]
        self.engine.carried = output.next_token_logits.clone()


class EAGLEWorkerV2:
    """The second worker."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.topk = engine, engine.sizes.topk
        self._draft_worker = self.draft_worker = EagleDraftWorker(engine)

    def forward_batch_generation(self, batch: Batch) -> Any:
        if batch.extend:
            hidden = self.engine.target_hidden(sum(batch.extend_lens))
            self.draft_worker._draft_extend_for_prefill(batch, hidden, None)  # pyright: ignore[reportPrivateUsage]
            return SimpleNamespace()
        batch.spec_info = self.draft_worker.draft(batch)
        result = self.verify(batch)
        self.draft_worker._draft_extend_for_decode(batch, result)  # pyright: ignore[reportPrivateUsage]
        return result

    def verify(self, batch: Batch) -> Any:
        output = self.engine.target_output(len(batch.reqs), batch.spec_info.positions)
        if self.engine.older:
            batch.spec_info.sample(batch, output)
        else:
            eagle_sample(batch.spec_info, batch, output)
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=self.engine.sizes.graph)


class MultiLayerEagleDraftWorker(_Drafter):
    """A draft for each step, all of which run in the extend. In 0.5.9 a decode's extend gives all tokens' logits."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.draft_runner_list = [ModelRunner(engine.sizes) for _ in range(engine.sizes.steps)]
        self.draft_runner = self.draft_runner_list[0]
        self.cuda_graph_runner_for_draft_extend: Any = None
        self.drafted: dict[str, list[torch.Tensor]] = {}  # of each request: the logits of each step, [Vd]

    def init_cuda_graphs(self) -> None:
        self.cuda_graph_runner_for_draft_extend = graph = MultiLayerEagleMultiStepDraftExtendCudaGraphRunner(self)
        for runner in self.draft_runner_list:
            runner.graph_prefill, runner.pool = True, graph.pool

    def draft(self, batch: Batch) -> EagleVerifyInput:
        sizes, bs = self.engine.sizes, len(batch.reqs)
        steps = [torch.stack([self.drafted[req.rid][step] for req in batch.reqs]) for step in range(sizes.steps)]
        self.engine.used.append(steps)
        tokens = torch.stack([torch.zeros_like(steps[0][:, 0], dtype=torch.int64), *(s.argmax(-1) for s in steps)], 1)
        child = torch.arange(1, sizes.nodes + 1, device=sizes.device).expand(bs, -1).clone()
        child[:, -1] = -1
        positions = torch.arange(bs * sizes.nodes, device=sizes.device)
        return EagleVerifyInput(self.engine, tokens.reshape(-1), positions, child, torch.full_like(child, -1), 1)

    def _draft_extend_for_prefill(self, batch: Batch, target_hidden_states: torch.Tensor, next_token_ids: Any) -> Any:
        forward_batch = self._forward_batch(target_hidden_states, target_hidden_states.shape[0], len(batch.reqs))
        forward_batch.wanted = _ends(batch)
        forwards = (runner.forward(forward_batch).logits_output for runner in self.draft_runner_list)
        self._keep(batch, [output.next_token_logits.clone() for output in forwards])

    def _draft_extend_for_decode(self, batch: Batch, batch_result: Any) -> None:
        bs, nodes = len(batch.reqs), self.engine.sizes.nodes
        hidden, graph = batch_result.logits_output.hidden_states, self.cuda_graph_runner_for_draft_extend
        index = torch.arange(bs, device=hidden.device) * nodes + batch_result.accept_lens - 1
        steps = list[torch.Tensor]()
        if graph is not None:
            graph.prepare(hidden, index)
            for step in range(self.engine.sizes.steps):
                steps.append(graph.replay(step)[0].next_token_logits[:bs].clone())
            graph.overwrite()
        else:
            forward_batch = self._forward_batch(hidden, bs * nodes, bs)
            forward_batch.wanted = None if self.engine.older else index
            for runner in self.draft_runner_list:
                logits = runner.forward(forward_batch).logits_output.next_token_logits
                steps.append(logits.index_select(0, index) if self.engine.older else logits)
        self._keep(batch, steps)

    def _keep(self, batch: Batch, steps: list[torch.Tensor]) -> None:
        for row, req in enumerate(batch.reqs):
            self.drafted[req.rid] = [logits[row].clone() for logits in steps]


class MultiLayerEagleMultiStepDraftExtendCudaGraphRunner:
    """Graphs of one memory pool: a step's replay writes over what the step before has left."""

    prune_draft_extend_logits = True

    def __init__(self, eagle_worker: MultiLayerEagleDraftWorker) -> None:
        self.eagle_worker = eagle_worker
        sizes = eagle_worker.engine.sizes
        width = sizes.states * sizes.hidden
        self.buffers = SimpleNamespace(hidden_states=torch.zeros(0, width, device=sizes.device))
        self.raw_bs = 0
        self.pool = torch.zeros(max(sizes.captured), sizes.draft_vocab, device=sizes.device)

    def prepare(self, hidden: torch.Tensor, index: torch.Tensor) -> None:
        self.buffers.hidden_states, self.buffers.select_index, self.raw_bs = hidden, index, index.shape[0]

    def replay(self, step: int) -> tuple[Any, ...]:
        model = self.eagle_worker.draft_runner_list[step].model
        chosen = self.buffers.hidden_states[self.buffers.select_index]
        self.pool[: self.raw_bs] = model.replayed(chosen).next_token_logits
        return LogitsProcessorOutput(self.pool, None), None, None

    def overwrite(self) -> None:
        self.pool.fill_(7)


class MultiLayerEagleWorkerV2(EAGLEWorkerV2):
    """The worker with a draft for each step: a launch is that of the second worker."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._draft_worker = self.draft_worker = MultiLayerEagleDraftWorker(engine)  # type: ignore[assignment]

    def forward_batch_generation(self, batch: Batch) -> Any:
        return super().forward_batch_generation(batch)

    def verify(self, batch: Batch) -> Any:
        result = super().verify(batch)
        bs = len(batch.reqs)
        result.accept_lens = torch.full((bs,), 2, dtype=torch.int32, device=self.engine.sizes.device)  # of the path
        return result


class EAGLEWorker(_Drafter):
    """The first worker, which is its own draft side."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.topk = engine, engine.sizes.topk
        self.model_runner = ModelRunner(engine.sizes)
        self.cuda_graph_runner: Any = None
        self.cuda_graph_runner_for_draft_extend: Any = None

    def init_cuda_graphs(self) -> None:
        self.cuda_graph_runner = EAGLEDraftCudaGraphRunner(self)
        self.cuda_graph_runner_for_draft_extend = EAGLEDraftExtendCudaGraphRunner(self)

    def forward_batch_generation(self, batch: Batch) -> Any:
        if batch.extend:
            self.forward_draft_extend(batch, self.engine.target_hidden(sum(batch.extend_lens)), None, None)
            return SimpleNamespace()
        spec_info = self.draft(batch)
        _, verified, _, graph = self.verify(batch, spec_info)
        self.forward_draft_extend_after_decode(batch)
        return SimpleNamespace(accept_length_per_req_cpu=verified.accept_length_per_req_cpu, can_run_cuda_graph=graph)

    def draft(self, batch: Batch) -> EagleVerifyInput:
        return self._draft(batch, self.cuda_graph_runner)

    def verify(self, batch: Batch, spec_info: EagleVerifyInput) -> tuple[Any, ...]:
        output = self.engine.target_output(len(batch.reqs))
        verified = spec_info.verify(batch, output)
        return output, verified, None, self.engine.sizes.graph

    def forward_draft_extend(self, batch: Batch, hidden_states: torch.Tensor, next_token_ids: Any, lens: Any) -> None:
        self._last(self._extend(hidden_states, len(batch.reqs)), batch)

    def forward_draft_extend_after_decode(self, batch: Batch) -> None:
        going = [req for req in batch.reqs if not req.finished()]
        hidden = self.engine.accepted_hidden(batch, going)
        index = torch.arange(len(going), device=hidden.device) * 2 + 1
        if self.cuda_graph_runner_for_draft_extend is not None:
            forward_batch = self._forward_batch(hidden, 2 * len(going), len(going))
            output = self.cuda_graph_runner_for_draft_extend.execute(forward_batch, index)
        else:
            output = self._extend(hidden, len(going))
            output.next_token_logits = output.next_token_logits[index]
        self.engine.carried = output.next_token_logits.clone()


WORKERS = {"v2": EAGLEWorkerV2, "v1": EAGLEWorker, "multi_layer": MultiLayerEagleWorkerV2}


class GenerationBatchResult:
    """The scheduler's result, in 0.5.3 another object than the worker's."""

    @classmethod
    def from_forward_batch_output(cls, forward_batch_output: Any) -> Any:
        return SimpleNamespace(**{k: v for k, v in vars(forward_batch_output).items() if not k.startswith("_")})


class Scheduler:
    """Runs batches and processes their results."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting_queue: list[Req] = []

    def run(self, batch: Batch) -> None:
        if not batch.extend:
            batch.spec_info = SimpleNamespace(
                hidden_states=self.engine.random(len(batch.reqs), self.engine.sizes.hidden)
            )
        result = self.engine.worker.forward_batch_generation(batch)
        if self.engine.older:
            result = GenerationBatchResult.from_forward_batch_output(forward_batch_output=result)
        self.process_batch_result(batch, result)
        self.engine.use_again()

    def abort_request(self, recv_req: Any) -> None:
        for req in [r for r in self.waiting_queue if r.rid == recv_req.rid]:
            self.waiting_queue.remove(req)
            self.send_abort_output(recv_req, req)

    def send_abort_output(self, abort_req: Any, req: Req) -> None:
        """Tells the tokenizer's process."""

    def process_batch_result(self, batch: Batch, result: Any) -> None:
        for req in batch.reqs:
            if batch.extend:
                req.output_ids.append(1)
            elif self.engine.family != "v1" and req.finished_reason is None and not req.is_retracted:
                req.output_ids += [7, 8]  # of others the engine throws the result away
        self.engine.finish(batch)


@dataclass
class Engine:
    """One server: a worker of either family, and requests to run through it.

    `older`: the verdict is the second worker's method or the first worker's kernels, as in older releases.
    """

    family: str
    sizes: Sizes
    greedy: bool = True
    older: bool = False
    worker: Any = None
    carried: torch.Tensor | None = None
    rounds: int = 3
    given: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    used: list[list[torch.Tensor]] = field(default_factory=list[list[torch.Tensor]])  # each round's steps
    reqs: list[Req] = field(default_factory=list[Req])

    def __post_init__(self) -> None:
        self.worker = WORKERS[self.family](self)
        self.scheduler = Scheduler(self)
        self.target_runner = ModelRunner(self.sizes, TargetModel(self.sizes))
        self.reqs = [Req(f"r{i}") for i in range(self.sizes.bs)]
        tree = {name: torch.tensor([row] * self.sizes.bs) for name, row in TREE.items()}
        self.tree = {name: values.to(self.sizes.device) for name, values in tree.items()}

    @property
    def draft_side(self) -> Any:
        return self.worker.draft_worker if self.family != "v1" else self.worker

    @property
    def draft_runner(self) -> ModelRunner:
        return self.draft_side.draft_runner if self.family != "v1" else self.draft_side.model_runner

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.sizes.device)

    def target_hidden(self, rows: int) -> torch.Tensor:
        self.given.append(self.target_runner.model(self.random(rows, self.sizes.hidden)))
        return self.given[-1]

    def accepted_hidden(self, batch: Batch, going: list[Req]) -> torch.Tensor:
        """The first worker keeps the accepted rows of those that go on: root and first child."""
        rows = [batch.reqs.index(req) * self.sizes.nodes + place for req in going for place in (0, 1)]
        return rows_of(self.given[-1], rows)

    def use_again(self) -> None:
        """What becomes of the target's states after a batch."""
        for states in self.given:
            states.fill_(7)
        self.given.clear()

    def target_output(self, bs: int, positions: torch.Tensor | None = None) -> LogitsProcessorOutput:
        rows = bs * self.sizes.nodes
        hidden, logits = self.random(rows, self.sizes.hidden), self.random(rows, self.sizes.vocab)
        spec_info = SimpleNamespace(hidden_states=hidden, logits=logits)
        ids = torch.zeros(rows, dtype=torch.int64)
        output = self.target_runner.forward(ForwardBatch(spec_info, positions, ids, bs)).logits_output
        self.given.append(output.hidden_states)
        return output

    def finish(self, batch: Batch) -> None:
        if self.rounds == 0:
            for req in batch.reqs:
                req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})

    @torch.inference_mode()
    def serve(self) -> None:
        """A prefill and its rounds; the requests finish with the last."""
        self.scheduler.run(Batch(self.reqs, extend=True))
        for _ in range(self.rounds):
            self.rounds -= 1
            self.scheduler.run(Batch(self.reqs))
        waits = Req("waits")
        self.scheduler.run(Batch([waits], extend=True))
        self.scheduler.waiting_queue.append(waits)  # retracted, and then aborted
        self.scheduler.abort_request(waits)
