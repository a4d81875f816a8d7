"""Which request of one run is which of the other: the k-th with a prompt is the k-th with that prompt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from eagletrace.store import Run


@dataclass(frozen=True)
class Request:
    """One user request; `key` is host, pid and request_seq."""

    key: tuple[str, int, int]
    id: str
    prompt_hash: str
    prompt_tokens: int | None


def user_requests(run: Run) -> list[Request]:
    """User requests whose prompt is known, in the order of their start; needs the table `diff_requests`."""
    rows = run.execute(
        "SELECT host, pid, request_seq, request_id, prompt_hash, prompt_tokens FROM diff_requests "
        "WHERE kind = 'user' AND prompt_hash IS NOT NULL ORDER BY started"
    )
    return [
        Request((str(host), int(pid), int(seq)), str(id_ or seq), str(prompt), tokens)
        for host, pid, seq, id_, prompt, tokens in rows
    ]


def match(a: list[Request], b: list[Request]) -> list[tuple[Request, Request]]:
    """Pairs of requests with the same prompt, in the order of run a."""
    waiting: dict[str, list[Request]] = defaultdict(list)
    for request in reversed(b):
        waiting[request.prompt_hash].append(request)
    return [(request, waiting[request.prompt_hash].pop()) for request in a if waiting[request.prompt_hash]]
