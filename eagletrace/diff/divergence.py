"""Where two runs part first: requests with the same prompt, round by round, until a token or a verdict differs.

Two requests whose drafts and verdicts are equal so far stand at the same position in the same round, so that rounds are
compared in order: the root (a token of the output), the drafted tree, the target's choices, the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagletrace.diff import policy
from eagletrace.diff.matching import Request, match, user_requests
from eagletrace.diff.measures import queries
from eagletrace.diff.result import Divergence, Parting
from eagletrace.diff.stages import compare_states
from eagletrace.store import Run

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Path:
    """One round: tokens of the nodes, the target's choice after each, depths, verdicts and parents, root first."""

    position: int
    committed: int | None
    drafts: list[int | None]
    targets: list[int | None]
    depths: list[int]
    accepted: list[bool | None]
    parents: list[int | None]

    def output(self) -> list[int | None]:
        """The root and the accepted tokens that were kept."""
        kept = [0, *(n for n, ok in enumerate(self.accepted) if ok and self.depths[n] > 0)]
        kept.sort(key=lambda n: self.depths[n])
        return [self.drafts[n] for n in kept if self.committed is None or self.depths[n] <= self.committed]


def find_divergence(a: Run, b: Run) -> Divergence:
    """Compare the matched requests of two runs; needs the table `diff_requests` in both."""
    pairs = match(user_requests(a), user_requests(b))
    if not pairs:
        return Divergence(0, 0, 0, 0, {}, None, notes=("no prompt was sent to both runs",))
    chosen = pairs[: policy.PAIRS_COMPARED]
    paths_a, paths_b = (_paths(run, [p[side] for p in chosen]) for side, run in enumerate((a, b)))
    compared = [(p, q) for p, q in chosen if p.key in paths_a and q.key in paths_b]
    partings = [_parting(p, q, paths_a[p.key], paths_b[q.key]) for p, q in compared]
    parted = [p for p in partings if p is not None]
    until = [_first_other_token(paths_a[p.key], paths_b[q.key]) for p, q in compared]
    same = sum(u is None for u in until)
    first = min(parted, key=lambda p: p.output_index, default=None)
    kinds = dict(Counter(p.what for p in parted))
    states, notes = compare_states(a, b, compared, until)
    if len(chosen) < len(pairs):
        notes = (*notes, f"the first {len(chosen)} of {len(pairs)} matched requests were compared")
    return Divergence(len(pairs), len(compared), len(parted), same, kinds, first, states, notes)


def _paths(run: Run, requests: Sequence[Request]) -> dict[Key, list[Path]]:
    """Rounds of these requests, in the order of their positions."""
    hosts, pids, seqs = (list(column) for column in zip(*(r.key for r in requests), strict=True))
    found: dict[Key, list[Path]] = {}
    for host, pid, seq, *path in run.execute(queries()["paths"].sql, {"hosts": hosts, "pids": pids, "seqs": seqs}):
        found.setdefault((str(host), int(pid), int(seq)), []).append(Path(*path))
    return found


def _parting(a: Request, b: Request, of_a: Sequence[Path], of_b: Sequence[Path]) -> Parting | None:
    for one, other in zip(of_a, of_b, strict=False):
        found = _first_difference(one, other)
        if found is not None:
            what, depth, mine, theirs = found
            start = a.prompt_tokens if a.prompt_tokens is not None else of_a[0].position
            return Parting(
                what, a.id, b.id, a.prompt_hash, one.position + depth - start, one.position + depth, depth, mine, theirs
            )
    return None


def _first_difference(a: Path, b: Path) -> tuple[Any, int, Any, Any] | None:
    """What differs first in one round, the depth of its node, and what both have there."""
    if a.position != b.position:
        return "output_token", 0, {"position": a.position}, {"position": b.position}
    if a.drafts[:1] != b.drafts[:1]:
        return "output_token", 0, a.drafts[0], b.drafts[0]
    for node in range(1, max(len(a.drafts), len(b.drafts))):
        if node >= len(a.drafts) or node >= len(b.drafts):
            depth = (a if node < len(a.depths) else b).depths[node]
            return "drafted_token", depth, _at(a.drafts, node), _at(b.drafts, node)
        if a.depths[node] != b.depths[node] or a.parents[node] != b.parents[node]:
            return "tree", a.depths[node], _place(a, node), _place(b, node)
        if a.drafts[node] != b.drafts[node]:
            return "drafted_token", a.depths[node], a.drafts[node], b.drafts[node]
    for node, (mine, theirs) in enumerate(zip(a.targets, b.targets, strict=True)):
        if mine != theirs and _counts(a, node):
            return "target_token", a.depths[node] + 1, mine, theirs
    for node, (mine, theirs) in enumerate(zip(a.accepted, b.accepted, strict=True)):
        if mine != theirs:
            return "verdict", a.depths[node], _verdict(a, node), _verdict(b, node)
    return None


def _at(tokens: Sequence[int | None], node: int) -> int | None:
    return tokens[node] if node < len(tokens) else None


def _place(path: Path, node: int) -> Mapping[str, Any]:
    return {"token": path.drafts[node], "depth": path.depths[node], "parent": path.parents[node]}


def _counts(path: Path, node: int) -> bool:
    """Whether the target's choice after a node is one of the output: the choice after a wrong draft is of no text."""
    return node == 0 or bool(path.accepted[node])


def _verdict(path: Path, node: int) -> Mapping[str, Any]:
    return {"token": path.drafts[node], "accepted": path.accepted[node]}


def _tokens(paths: Sequence[Path]) -> dict[int, int | None]:
    """The output by position, as the rounds give it."""
    return {p.position + n: token for p in paths for n, token in enumerate(p.output())}


def _first_other_token(a: Sequence[Path], b: Sequence[Path]) -> int | None:
    """The first position at which the outputs differ; None where they agree as far as both rounds give them."""
    mine, theirs = _tokens(a), _tokens(b)
    return min((p for p, token in mine.items() if theirs.get(p, token) != token), default=None)
