"""Level `tensors`: hidden states of sampled requests, for replay. Which requests, how many positions, how many bytes.

A request is recorded from its first computed position on, without holes, until it ends or something bounds it; that is
an event `tensors_bounded`. Values are copied as the engine uses them (`tensor_copies.py`); rows are made on the
recorder's thread, of tensor-parallel rank 0: all ranks have the same states. Nothing here exists below level `tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagletrace.instrumentations.sglang import param_values
from eagletrace.instrumentations.sglang.aux_layers import AuxLayers
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.tensor_copies import LaunchTensors, Part, PrefillTensors
from eagletrace.record.requests import RequestState
from eagletrace.record.tensor_rows import Stored, of_integers

WAITING_BYTES = 256 << 20  # copied and not written yet
TOKENS, BYTES = "EAGLETRACE_TENSOR_TOKENS", "EAGLETRACE_TENSOR_BYTES"
BRANCH_IDS = 80  # bytes of the best ids of one branch


class TensorRecording:
    """What is recorded of which request. One for each time that the level is on."""

    def __init__(self, session: Session) -> None:
        self.session = session
        settings = session.recorder.settings
        self.tokens, self.bytes = settings.tensor_tokens, settings.tensor_bytes
        self.reserved = 0  # bytes of launches and prefills in progress, at most
        self.next: dict[int, int] = {}  # requests that are recorded: the position that comes next
        self._ended: set[int] = set()
        self._refused: set[str] = set()
        self._broken = False
        self._position_bytes, self._step_bytes = _sizes(session)

    # -- what the hooks ask -------------------------------------------------------------------------

    def prefill(self, batch: Any, reqs: Sequence[Any], states: Sequence[RequestState]) -> PrefillTensors | None:
        """A prefill's tensors; None if none of its requests is recorded."""
        try:
            return self._prefill(batch, reqs, states)
        except Exception as error:  # noqa: BLE001
            self.give_up(error)
            return None

    def launch(self, launch: Launch) -> LaunchTensors | None:
        """A launch's tensors; None if none of its requests is recorded."""
        try:
            return self._launch(launch)
        except Exception as error:  # noqa: BLE001
            self.give_up(error)
            return None

    def _prefill(self, batch: Any, reqs: Sequence[Any], states: Sequence[RequestState]) -> PrefillTensors | None:
        lens, prefixes = (_lens(batch, *names) for names in (_EXTENDED, _PREFIX))
        if lens is None or prefixes is None or len(lens) < len(reqs) or len(prefixes) < len(reqs):
            return None
        self._stop_lost()
        parts, start = list[Part](), 0
        for req, state, n, prefix in zip(reqs, states, lens, prefixes, strict=False):
            if n and self._takes(req, state, prefix, n):
                parts.append(Part(state.seq, start, n, prefix))
                self.reserved += n * self._position_bytes
            start += n
        reserved = sum(part.rows for part in parts) * self._position_bytes
        return PrefillTensors(self, parts, reserved) if parts else None

    def _launch(self, launch: Launch) -> LaunchTensors | None:
        self._stop_lost()
        if not self.next:
            return None
        args = self.session.server_args
        steps = int(getattr(args, "speculative_num_steps", None) or 1)
        of_request = (steps + 1) * self._position_bytes + (1 + (steps - 1) * 2 * launch.topk) * self._step_bytes
        which = list[int]()
        for row, state in enumerate(launch.packet.requests):
            if state.seq not in self.next:
                continue
            reason = self._no_room(of_request)
            if reason is not None:
                self.stop(state.seq, reason)
                continue
            self.reserved += of_request
            which.append(row)
        return LaunchTensors(self, launch, which, len(which) * of_request) if which else None

    def write(self, rows: Sequence[Stored], reserved: int) -> None:
        """Hand rows over, and give back what was reserved for them."""
        self.reserved -= reserved
        self.session.recorder.tensors(rows)

    def stop(self, seq: int, reason: str) -> None:
        """Record no more of a request."""
        position = self.next.pop(seq, None)
        if position is not None:
            self._ended.add(seq)
            self.session.recorder.event("tensors_bounded", request_seq=seq, position=position, reason=reason)

    def forget(self, seq: int) -> None:
        """A request has ended."""
        self.next.pop(seq, None)
        self._ended.discard(seq)

    def interrupt(self, reason: str = "recording interrupted") -> None:
        """Recording is paused, or the level is another one: what runs now would have a hole."""
        self.reserved = 0
        for seq in list(self.next):
            self.stop(seq, reason)

    def give_up(self, error: Exception) -> None:
        """Something of ours failed: record no more, so that the hooks' other facts are not lost with it."""
        if not self._broken:
            self._broken = True
            self.session.recorder.event("hook_error", target="tensors", error=repr(error))
            self.interrupt("error")

    # -- bounds -------------------------------------------------------------------------------------

    def _takes(self, req: Any, state: RequestState, prefix: int, n: int) -> bool:
        """Whether a prefill's part of a request is recorded: `n` positions from `prefix` on."""
        if state.seq in self.next:
            if self.next[state.seq] != prefix:
                self.stop(state.seq, "retracted")
                return False
            reason = self._no_room(n * self._position_bytes)
            if reason is not None:
                self.stop(state.seq, reason)
            return reason is None
        first = prefix == (getattr(req, "cached_tokens", None) or 0) and not len(req.output_ids)
        wanted = first and state.sampled and state.kind == "user" and not self._broken
        if not wanted or state.seq in self._ended:
            return False
        prompt = state.prompt_tokens
        needed = (prompt - prefix) * self._position_bytes + 8 * prompt
        reason = TOKENS if prompt >= self.tokens else self._no_room(needed)
        if reason is not None:
            self._refuse(state.seq, reason)
            return False
        self.next[state.seq] = prefix
        ids = of_integers(list(req.origin_input_ids))
        self.write([Stored(state.seq, 0, "prompt_ids", ids, 0, ids.rows)], 0)
        return True

    def _refuse(self, seq: int, reason: str) -> None:
        self._ended.add(seq)
        recorder = self.session.recorder
        recorder.not_recorded("tensors", reason)
        if reason not in self._refused:
            self._refused.add(reason)
            recorder.event("tensors_bounded", request_seq=seq, position=None, reason=reason)

    def _no_room(self, needed: int) -> str | None:
        recorder = self.session.recorder
        if recorder.tensor_bytes + self.reserved + needed > self.bytes:
            return BYTES
        return "queue full" if recorder.tensor_bytes_waiting + self.reserved + needed > WAITING_BYTES else None

    def _stop_lost(self) -> None:
        lost = self.session.recorder.tensors_lost
        if lost:
            for seq in [seq for seq in self.next if seq in lost]:
                self.stop(seq, "write failed")


_EXTENDED = ("extend_seq_lens", "extend_lens")  # of a ModelWorkerBatch, of a ScheduleBatch
_PREFIX = ("extend_prefix_lens", "prefix_lens")


def _lens(batch: Any, *names: str) -> list[int] | None:
    values = next((v for v in (getattr(batch, name, None) for name in names) if v is not None), None)
    return values if isinstance(values, list) else None


def _sizes(session: Session) -> tuple[int, int]:
    """Bytes of a position in a prefill or an extend, and of a branch in a draft step; at most."""
    facts = session.draft_facts
    item = next((p.element_size() for p in session.draft_runner.model.parameters()), 4)
    hidden = int(facts.get("target_hidden_size") or 0)
    own = int(facts.get("config", {}).get("hidden_size") or hidden)
    layers = len(session.aux_layers.layers) if session.aux_layers is not None else 0
    width = max(int(facts.get("fc_in") or 0), hidden)
    return item * (width + own + layers * hidden) + 8, item * own + BRANCH_IDS


def follow(session: Session, *, paused: bool = False) -> None:
    """Begin to store tensors, or cease to, as the level says."""
    settings = session.recorder.settings
    on = settings.level == "tensors" and not paused and (session.recorder.writer.process.get("tp_rank") or 0) == 0
    if on and session.tensors is None:
        if settings.aux_layers and session.aux_layers is None:
            session.aux_layers = AuxLayers(session, settings.aux_layers)
        session.tensors = TensorRecording(session)
    elif not on and session.tensors is not None:
        recording, session.tensors, session.recording = session.tensors, None, None
        recording.interrupt()
    if session.aux_layers is not None:
        session.aux_layers.watch(on=on)
    if on and not session.values_written:
        session.values_written = True
        param_values.write(session)
