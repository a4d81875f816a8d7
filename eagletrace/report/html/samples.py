"""Rounds to look at, token by token: of the requests with the lowest accept length, the middle one and the highest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from eagletrace.report.html.tokens import Token, TokenNames
from eagletrace.store import Run
from eagletrace.store.sqlfile import load_folder

ROUNDS = 12  # of each request
LEAST_ROUNDS = 8  # of a request that is picked, where there are such
MAX_NODES = 3_000  # in all: about half a megabyte of HTML
MAX_DEPTH = 64  # of a node; engines draft some ten steps

State = Literal["root", "accepted", "rejected", "unjudged"]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Node:
    """One node of a verify tree, with its children; `wanted` is the target's choice after the parent."""

    token: Token | None
    wanted: Token | None
    after: Token | None
    state: State
    depth: int
    rank: int | None
    known: bool | None
    masked: bool
    draft_prob: float | None
    target_prob: float | None
    children: tuple[Node, ...] = ()

    @property
    def missed(self) -> bool:
        """Whether the target looked at the children and took none of them."""
        judged = any(child.state == "rejected" for child in self.children)
        return judged and not any(child.state == "accepted" for child in self.children)


@dataclass(frozen=True)
class SampledRound:
    """One round; `nodes` lists the tree's nodes, the root first, in the order of the tree."""

    number: int
    request_round: int | None
    row: int | None
    batch_size: int | None
    position: int | None
    correct: int
    committed: int | None
    root: Node
    nodes: tuple[Node, ...]
    chain: bool

    @property
    def path(self) -> list[Node]:
        """The root and the accepted nodes."""
        return [node for node in self.nodes if node.state in ("root", "accepted")]

    @property
    def bonus(self) -> Token | None:
        """The target's own token at the end of the accepted path."""
        return self.path[-1].after


@dataclass(frozen=True)
class SampledRequest:
    """One request with its first rounds; `facts` is the row of `sampled_requests.sql`."""

    facts: Row
    rounds: tuple[SampledRound, ...]

    @property
    def depth(self) -> int:
        """The deepest drafted node."""
        return max((node.depth for r in self.rounds for node in r.nodes), default=0)

    @property
    def chain(self) -> bool:
        """Whether no round has branches."""
        return all(r.chain for r in self.rounds)

    @property
    def output(self) -> list[tuple[Token, str]]:
        """Tokens that the rounds added to the output, each with what gave it: `draft` or `target`."""
        tokens: list[tuple[Token, str]] = []
        for sampled in self.rounds:
            given = [(node.token, "draft") for node in sampled.path[1:]] + [(sampled.bonus, "target")]
            kept = len(given) if sampled.committed is None else sampled.committed
            tokens += [(token, source) for token, source in given[:kept] if token is not None]
        return tokens


def sample(run: Run, names: TokenNames, rounds: int = ROUNDS, max_nodes: int = MAX_NODES) -> tuple[SampledRequest, ...]:
    """Pick requests and read their first rounds; needs the table `round_counts` of `diagnose`."""
    queries = load_folder("report")
    picked: list[SampledRequest] = []
    nodes = 0
    for facts in run.rows(queries["sampled_requests"].sql, {"least": LEAST_ROUNDS}):
        key = {"host": facts["host"], "pid": facts["pid"], "seq": facts["request_seq"]}
        rows = run.rows(queries["sampled_nodes"].sql, {**key, "limit": rounds})
        read: list[SampledRound] = []
        for _, group in groupby(rows, key=lambda row: row["round"]):
            tree = list(group)
            nodes += len(tree)
            if nodes > max_nodes:
                break
            if (one := _round(tree, names)) is not None:
                read.append(one)
        if read:
            picked.append(SampledRequest(facts, tuple(read)))
    return tuple(picked)


def _round(rows: Sequence[Row], names: TokenNames) -> SampledRound | None:
    """A round from its nodes' rows; None where they make no tree."""
    below: dict[int, list[Row]] = {}
    for row in rows:
        parent, depth = row["parent_node"], row["depth"]
        if row["node"] and parent is not None and parent < row["node"] and depth is not None and depth <= MAX_DEPTH:
            below.setdefault(parent, []).append(row)
    root = next((row for row in rows if row["node"] == 0), None)
    if root is None:
        return None
    first, tree = rows[0], _node(root, below, names, 0)
    return SampledRound(
        first["round"], first["request_round"], first["row"], first["batch_size"], first["position"],
        first["correct"], first["committed"], tree, tuple(_all(tree)),
        chain=all(len(children) == 1 for children in below.values()),
    )  # fmt: skip


def _node(row: Row, below: Mapping[int, list[Row]], names: TokenNames, depth: int) -> Node:
    if row["node"] == 0:
        state: State = "root"
    elif row["accepted"]:
        state = "accepted"
    else:
        state = "rejected" if row["reached"] else "unjudged"
    return Node(
        names(row["draft_token"]), names(row["expected_token"]), names(row["target_token"]), state, depth,
        row["rank"], row["known"], bool(row["masked"]), _probability(row["draft_logprob"]),
        _probability(row["target_logprob"]),
        tuple(_node(child, below, names, depth + 1) for child in below.get(row["node"], ()) if depth < MAX_DEPTH),
    )  # fmt: skip


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _all(child)


def _probability(logprob: float | None) -> float | None:
    return None if logprob is None or math.isnan(logprob) else math.exp(min(logprob, 0.0))
