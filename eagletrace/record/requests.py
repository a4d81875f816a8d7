"""What the recorder knows of each request."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class RequestState:
    """One request as seen by one scheduler process. `prompt_ids` is kept only until its row is written."""

    seq: int
    rid: str
    kind: str
    sampled: bool
    start_ns: int
    prompt_ids: Sequence[int] | None
    prompt_tokens: int
    prompt_hash: str | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    temperature: float | None = None
    has_grammar: bool | None = None
    has_image: bool | None = None
    finish_reason: str | None = None
    end_ns: int | None = None
    retractions: int = 0
    request_round: int = 0
    engine_rounds: int | None = None
    engine_accepted: int | None = None
    trace_id: int = 0
    span_id: int = 0
    interrupted: bool = False  # recording paused while it ran: its rounds must be counted anew
    prefilled_outputs: int = 0  # output tokens that the last prefill began with

    def row(self, now_ns: int, key: bytes | None) -> dict[str, Any]:
        """The `requests` row as of now; hashes the prompt on first use."""
        if self.prompt_ids is not None:
            self.prompt_hash = prompt_hash(self.prompt_ids, key)
            self.prompt_ids = None
        return {
            "request_seq": self.seq, "request_id": self.rid, "request_kind": self.kind,
            "prompt_hash": self.prompt_hash, "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens, "output_tokens": self.output_tokens,
            "temperature": self.temperature, "has_grammar": self.has_grammar, "has_image": self.has_image,
            "finish_reason": self.finish_reason, "start_time_unix_nano": self.start_ns,
            "end_time_unix_nano": self.end_ns, "retractions": self.retractions,
            "engine_rounds": self.engine_rounds, "engine_accepted": self.engine_accepted,
            "time_unix_nano": now_ns,
        }  # fmt: skip


def prompt_hash(ids: Sequence[int], key: bytes | None = None) -> str:
    """16 hex digits of a hash of token ids, keyed when the trace is redacted."""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=8, key=key or b"").hexdigest()


def is_sampled(rid: str, share: float) -> bool:
    """Whether a request is recorded in detail: by a hash of its id, the same on every rank."""
    if share >= 1.0:
        return True
    return int.from_bytes(hashlib.blake2b(rid.encode(), digest_size=8).digest(), "big") < share * 2**64
