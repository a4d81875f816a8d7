"""Copies of the hidden states of one prefill, and of one launch, made where the engine has them at hand.

The engine uses its tensors again, and its norms write into residuals in place: whatever is kept is copied at once.

Shapes: bs requests, D nodes of a verify tree (root included), P nodes of the longest path, K branches, H hidden size of
the target, Vd draft vocabulary; R of the requests are recorded. Of each request n rows are kept in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol

import torch

from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.record.device import copy_out
from eagletrace.record.tensor_rows import HostCopy, Stored

TOP = 10  # of the draft's logits
LAYER_BYTES = 512 << 20  # of the target's layers, kept on the device until the verdict

Span = tuple[int, int]  # start, rows
P = ParamSpec("P")


class Owner(Protocol):
    """What is recorded of which request."""

    next: dict[int, int]  # by request: the position that comes next
    tokens: int  # positions of a request that are stored

    def stop(self, seq: int, reason: str) -> None:
        """Record no more of a request."""

    def write(self, rows: Sequence[Stored], reserved: int) -> None:
        """Take rows, for which so many bytes were reserved."""

    def give_up(self, error: Exception) -> None:
        """Something of ours failed: record no more, so that the hooks' other facts are not lost with it."""


class _Of(Protocol):
    @property
    def owner(self) -> Owner: ...


def quiet(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """A method whose errors end the recording of tensors and nothing else."""

    @wraps(method)
    def call(self: _Of, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001
            self.owner.give_up(error)

    return call


def rows_of(tensor: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """Rows of a tensor, one span after the other; a view if they follow each other."""
    start, end = spans[0][0], spans[0][0]
    for first, rows in spans:
        if first != end:
            return torch.cat([tensor[a : a + n] for a, n in spans])
        end += rows
    return tensor[start:end]


def fits(tensor: torch.Tensor | None, spans: Sequence[Span]) -> bool:
    """Whether a tensor has the rows."""
    return tensor is not None and tensor.shape[0] >= max(start + rows for start, rows in spans)


@dataclass(frozen=True, slots=True)
class Part:
    """Of one request: rows `start` to `start + rows` of a prefill, which are positions from `position` on."""

    seq: int
    start: int
    rows: int
    position: int


class PrefillTensors:
    """A prefill's tensors: all rows of the recorded requests."""

    def __init__(self, owner: Owner, parts: Sequence[Part], reserved: int) -> None:
        self.owner, self.parts, self.reserved = owner, parts, reserved
        self._spans = [(p.start, p.rows) for p in parts]
        self._copies: list[tuple[str, int | None, HostCopy]] = []

    @quiet
    def layer(self, layer: int, state: torch.Tensor) -> None:
        """Input of a layer of the target, [tokens, H]."""
        self._copy("target_layer", state, layer)

    @quiet
    def extend(self, forward_batch: Any) -> None:
        """What the draft's extend is given."""
        self._copy("input_ids", forward_batch.input_ids.to(torch.int64))
        self._copy("target_aux", getattr(forward_batch.spec_info, "hidden_states", None))

    @quiet
    def fused(self, out: torch.Tensor) -> None:
        """Output of the fusion layer in the extend."""
        self._copy("fc_out", out)

    def _copy(self, stage: str, tensor: torch.Tensor | None, layer: int | None = None) -> None:
        if tensor is not None and fits(tensor, self._spans):
            self._copies.append((stage, layer, copy_out(rows_of(tensor, self._spans))))

    @quiet
    def close(self) -> None:
        """The draft has been over the prompt: hand the rows over."""
        rows = list[Stored]()
        start = 0
        for part in self.parts:
            if part.seq in self.owner.next:
                self.owner.next[part.seq] = part.position + part.rows
                for stage, layer, copy in self._copies:
                    rows.append(Stored(part.seq, part.position, stage, copy, start, part.rows, layer=layer))
            start += part.rows
        self.owner.write(rows, self.reserved)


@dataclass(slots=True)
class _Copied:
    """A copy of a launch: of the recorded requests their rows, by (start, rows); None of one that has none.

    `of_path`: one row for each position of the accepted path; else all rows belong to one position.
    """

    stage: str
    copy: HostCopy
    spans: Sequence[Span | None]
    of_path: bool = True
    layer: int | None = None
    depth: int | None = None


@dataclass(slots=True)
class LaunchTensors:
    """A launch's tensors. `which` are the recorded requests, by row of the batch."""

    owner: Owner
    launch: Launch
    which: list[int]
    reserved: int
    _copies: list[_Copied] = field(default_factory=list[_Copied])
    _layers: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    _path: int = 0  # P
    _depth: int = 2  # that the next step drafts
    _spans: list[Span | None] = field(default_factory=list["Span | None"])  # of the extend

    # -- the draft ----------------------------------------------------------------------------------

    @quiet
    def begin(self, hidden: torch.Tensor | None, logits: torch.Tensor | None) -> None:
        """What the extend before left for this launch: hidden state [bs, H] and logits [bs, Vd] of depth 1."""
        self._branches("draft_out", hidden, 1, 1)
        self._best(logits, 1, 1)

    @quiet
    def step(self, hidden: torch.Tensor | None) -> None:
        """A draft step begins: the hidden state that it is given, [bs * K, H]."""
        self._branches("draft_in", hidden, self.launch.topk, self._depth)

    @quiet
    def stepped(self, hidden: torch.Tensor | None, logits: torch.Tensor | None) -> None:
        """A draft step has run: its hidden state and logits, [bs * K, ...]."""
        self._branches("draft_out", hidden, self.launch.topk, self._depth)
        self._best(logits, self.launch.topk, self._depth)
        self._depth += 1

    def _best(self, logits: torch.Tensor | None, branches: int, depth: int) -> None:
        if logits is not None and fits(logits, self._of_branches(branches)):
            rows = rows_of(logits, self._of_branches(branches))
            self._copied("draft_top_ids", rows.topk(min(TOP, rows.shape[-1]), dim=-1).indices, branches, depth)

    def _branches(self, stage: str, tensor: torch.Tensor | None, branches: int, depth: int) -> None:
        if tensor is not None and fits(tensor, self._of_branches(branches)):
            self._copied(stage, rows_of(tensor, self._of_branches(branches)), branches, depth)

    def _of_branches(self, branches: int) -> list[Span]:
        return [(row * branches, branches) for row in self.which]

    def _copied(self, stage: str, rows: torch.Tensor, branches: int, depth: int) -> None:
        spans = [(place * branches, branches) for place in range(len(self.which))]
        self._copies.append(_Copied(stage, copy_out(rows), spans, of_path=False, depth=depth))

    # -- the target and its verdict -----------------------------------------------------------------

    @quiet
    def layer(self, layer: int, state: torch.Tensor) -> None:
        """Input of a layer of the target at the nodes, [bs * D, H]; memory of its own."""
        if (len(self._layers) + 1) * state.nbytes <= LAYER_BYTES:
            self._layers[layer] = state
            return
        self._layers.clear()
        for row in self.which:
            self.owner.stop(self.launch.packet.requests[row].seq, "device memory")

    @quiet
    def verdict(self, accept_index: torch.Tensor, nodes: int) -> None:
        """The accepted path [bs, P], node ids that count through the launch (-1 padded): the layers' rows on it."""
        self._path = path = accept_index.shape[1]
        layers, self._layers = self._layers, {}
        rows = accept_index.shape[0] * nodes
        layers = {layer: state for layer, state in layers.items() if state.shape[0] >= rows}
        if not layers:
            return
        on_path = rows_of(accept_index, [(row, 1) for row in self.which]).reshape(-1).to(torch.int64).clamp(min=0)
        copy = copy_out(torch.cat([state.index_select(0, on_path) for state in layers.values()]))
        size = len(self.which) * path
        for place, layer in enumerate(layers):
            spans = [(place * size + of * path, path) for of in range(len(self.which))]
            self._copies.append(_Copied("target_layer", copy, spans, layer=layer))

    # -- the extend ---------------------------------------------------------------------------------

    @quiet
    def extend(self, forward_batch: Any) -> None:
        """What the draft's extend is given: the second worker gives it D rows of each request, the path in front, the
        first one the accepted rows of the requests that go on."""
        lens = getattr(forward_batch, "extend_seq_lens_cpu", None)
        reqs, packet = self.launch.reqs, self.launch.packet
        going = list(range(len(reqs)))
        if packet.committed is not None:  # the first worker has kept its tokens by now
            going = [row for row, req in enumerate(reqs) if not req.finished()]
        if not self._path or lens is None or len(lens) < len(going):
            return
        starts, start = dict[int, Span](), 0
        for row, n in zip(going, lens, strict=False):
            starts[row] = (start, min(int(n), self._path))
            start += int(n)
        self._spans = [starts.get(row) for row in self.which]
        self._extended("input_ids", forward_batch.input_ids.to(torch.int64))  # int32 in the first worker
        self._extended("target_aux", getattr(forward_batch.spec_info, "hidden_states", None))

    @quiet
    def fused(self, out: torch.Tensor) -> None:
        """Output of the fusion layer in the extend."""
        self._extended("fc_out", out)

    def _extended(self, stage: str, tensor: torch.Tensor | None) -> None:
        present = [span for span in self._spans if span is not None]
        if not present or tensor is None or not fits(tensor, present):
            return
        spans, start = list[Span | None](), 0
        for span in self._spans:
            spans.append(None if span is None else (start, span[1]))
            start += 0 if span is None else span[1]
        self._copies.append(_Copied(stage, copy_out(rows_of(tensor, present)), spans))

    # -- the result ---------------------------------------------------------------------------------

    @quiet
    def close(self, positions: Sequence[int]) -> None:
        """The tokens that are kept are known: hand over the rows of the positions whose next token was kept.

        `positions` are those of the roots, by row of the batch.
        """
        packet, rows = self.launch.packet, list[Stored]()
        for place, row in enumerate(self.which):
            kept = (packet.committed or ())[row] if packet.counted and packet.counted[row] else 0
            seq = packet.requests[row].seq
            if kept < 1 or seq not in self.owner.next:
                continue
            if self.owner.next[seq] != positions[row]:
                self.owner.stop(seq, "gap")
                continue
            limit = self.owner.tokens - positions[row]
            rows.extend(self._of_request(place, seq, positions[row], min(kept, limit)))
            self.owner.next[seq] += min(kept, limit)
            if kept >= limit:
                self.owner.stop(seq, "EAGLETRACE_TENSOR_TOKENS")
        self.owner.write(rows, self.reserved)

    def _of_request(self, place: int, seq: int, root: int, kept: int) -> Iterator[Stored]:
        round_ = self.launch.packet.round
        for part in self._copies:
            span = part.spans[place]
            if span is None:
                continue
            start, rows = span
            position = root if part.depth is None else root + part.depth - 2
            yield Stored(
                seq, position, part.stage, part.copy, start, min(rows, kept) if part.of_path else rows, round_,
                part.layer, part.depth,
            )  # fmt: skip
