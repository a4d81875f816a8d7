"""Runs of several ranks, alike and with one difference each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from synthetic import DRAFT_VOCAB, HIDDEN, LAYER, Row, Synthetic, by

Build = Callable[[], Synthetic]


def sharded(**changes: Any) -> Synthetic:
    """A tensor-parallel rank: half of the head and of the projections, everything else whole."""
    run = Synthetic(**changes)
    for name, rows in (("lm_head.weight", DRAFT_VOCAB // 2), (f"{LAYER}.self_attn.qkv_proj.weight", HIDDEN)):
        row = run.params[name]
        elements = rows * row["shape"][1]
        row |= {"shape": [rows, row["shape"][1]], "elements": elements, "elements_loaded": elements, "checksum": name}
    return run


def tensor_parallel(second: Synthetic | None = None) -> Synthetic:
    first = sharded()
    for row in first.params.values():
        row["checksum"] = "0" * 16
    return first.with_peer(second or sharded(), tp=1)


def data_parallel(second: Synthetic | None = None) -> Synthetic:
    return Synthetic().with_peer(second or Synthetic(seed=1), dp=1)


def other_weights(run: Synthetic, name: str = "model.norm.weight") -> Synthetic:
    run.params[name] |= {"checksum": "f" * 16, "rms": 7.0}
    return run


def certain(differs_at: int = 0, **changes: Any) -> Synthetic:
    """A rank whose verdicts follow from the number of the round alone; in one round its first draft is right."""

    def rates(row: Row) -> Sequence[float]:
        right = (0, 2, 3, 1)[row["round"] % 4]
        right = 3 - right if row["round"] == differs_at else right
        return tuple(float(depth < right) for depth in range(3))

    def token(row: Row) -> int:
        return row["round"]

    fields: dict[str, Any] = {"rounds": 40, "rates_of": rates, "token_of": token}
    return Synthetic(**{**fields, **changes})


def ranked(first: Synthetic, *peers: tuple[Synthetic, int, int | None], **process: Any) -> Synthetic:
    """`first`, and peers with their tensor- and data-parallel ranks; `process` is what the first one is."""
    first.process |= process
    for peer, tp, dp in peers:
        first.peers.append(peer)
        peer.process = {"pid": 7 + len(first.peers), "tp_rank": tp, "dp_rank": dp}
    return first


def two(second: Synthetic, first: Synthetic | None = None) -> Synthetic:
    """Two tensor-parallel ranks."""
    return ranked(first or certain(), (second, 1, None))


def redacted(first: Synthetic, second: Synthetic) -> Synthetic:
    return two(second.fact("trace.redacted", True), first.fact("trace.redacted", True))


def other_tokens(row: Row) -> int:
    return row["round"] + (100 if row["round"] == 8 else 0)


def square(odd: Synthetic) -> Synthetic:
    """Two data-parallel groups of two tensor-parallel ranks; `odd` is the last."""
    return ranked(certain(), (certain(), 1, 0), (certain(), 0, 1), (odd, 1, 1), dp_rank=0)


def staged(second: Synthetic, first: Synthetic | None = None) -> Synthetic:
    """Two pipeline stages."""
    run = ranked(first or certain(), (second, 0, None))
    second.process["pp_rank"] = 1
    return run


def unranked(second: Synthetic) -> Synthetic:
    """The first rank does not know its place."""
    return ranked(certain(), (second, 1, 0), tp_rank=None, pp_rank=None)


def changed_weights(count: int) -> Synthetic:
    """A rank of which some parameters, one of them called `extra-0`, hold other values."""
    run = certain()
    for number in range(count):
        name = f"extra-{number:02}"
        run.params[name] = {**run.params["model.norm.weight"], "name": name, "checksum": "f" * 16, "rms": 2.0}
    return run


def with_extra(count: int) -> Synthetic:
    run = changed_weights(count)
    for row in run.params.values():
        row |= {"checksum": "0" * 16, "rms": 0.1}
    return run


def rewritten(run: Synthetic, **changes: Any) -> Synthetic:
    """Further rows of one parameter."""
    run.params["again"] = {**run.params["model.norm.weight"], "checksum": "a" * 16, **changes}
    return run


def only_fact(name: str, value: Any) -> Synthetic:
    run = certain()
    run.facts = {name: (value, None, "test")}
    return run


def dp(accepted: int, rounds: int, others: int = 60, of: int = 100, **changes: Any) -> Synthetic:
    """A second data-parallel rank with `accepted` of `rounds` first drafts, the first one with `others` of `of`."""

    def rank(right: int, count: int) -> Synthetic:
        def rates(row: Row) -> Sequence[float]:
            return float(row["round"] <= right), 1.0, 1.0

        return Synthetic(rounds=count, requests=1, rates_of=rates)

    second = rank(accepted, rounds)
    for name, value in changes.items():
        setattr(second, name, value)
    return ranked(rank(others, of), (second, 0, 1), dp_rank=0)


def some_drafts(row: Row) -> Sequence[float]:
    """No draft, one, or three."""
    return ((), (1.0,), (0.0, 1.0, 1.0))[row["round"] % 3]


def unjudged(row: Row) -> bool:
    return row["round"] % 2 == 0


RANK_CASES: dict[str, Build] = {
    "ranks alike": lambda: two(certain()),
    "ranks apart in one verdict": lambda: two(certain(8)),
    "ranks apart in two verdicts": lambda: two(certain(8), certain(9)),
    "ranks apart in a draft": lambda: two(certain(token_of=other_tokens)),
    "ranks apart in the target's choice after the root": lambda: two(certain(target_of=target_differs(0))),
    "ranks apart in the target's choice after a right draft": lambda: two(certain(target_of=target_differs(1))),
    "ranks apart in the target's choice after a wrong draft": lambda: two(certain(target_of=target_differs(3))),
    "ranks apart in redacted choices": lambda: redacted(certain(), certain(target_of=target_differs(0))),
    "ranks with one parameter": lambda: two(one_parameter(), one_parameter()),
    "one replica": lambda: ranked(certain(), dp_rank=0),
    "ranks of which one lost nodes": lambda: two(
        certain(token_of=other_tokens, kept=by(lambda node: node["depth"] < 3))
    ),
    "ranks of which one lost trees": lambda: two(certain(8, kept=by(lambda node: False))),
    "ranks apart in redacted tokens": lambda: redacted(certain(), certain(token_of=other_tokens)),
    "ranks apart in redacted verdicts": lambda: redacted(certain(), certain(8)),
    "ranks unredacted in words": lambda: two(
        certain(token_of=other_tokens).fact("trace.redacted", False), certain().fact("trace.redacted", False)
    ),
    "ranks apart in rounds that do not count": lambda: two(
        certain(8, round_columns=by(lambda row: {"counted": row["round"] != 8}))
    ),
    "ranks apart in rounds without verdict": lambda: two(certain(8, unjudged=by(lambda row: row["round"] == 8))),
    "ranks apart, both without verdict": lambda: two(certain(unjudged=unjudged), certain(unjudged=unjudged)),
    "ranks with other requests": lambda: two(
        certain(round_columns=by(lambda row: {"request_id": f"other-{row['request_seq']}"}))
    ),
    "ranks at other positions": lambda: two(certain(round_columns=by(lambda row: {"position": row["round"] + 500}))),
    "three ranks": lambda: ranked(certain(), (certain(), 1, None), (certain(9), 2, None)),
    "four ranks": lambda: square(certain()),
    "four ranks, one apart": lambda: square(certain(9)),
    "two stages": lambda: staged(certain(9)),
    "two stages with other weights": lambda: staged(changed_weights(2), with_extra(2)),
    "ranks of unknown place": lambda: unranked(certain(9)),
    "ranks with one other parameter": lambda: two(changed_weights(1), with_extra(1)),
    "ranks with three other parameters": lambda: two(changed_weights(3), with_extra(3)),
    "ranks with four other parameters": lambda: two(changed_weights(4), with_extra(4)),
    "ranks with twelve other parameters": lambda: two(changed_weights(12), with_extra(12)),
    "groups with another parameter": lambda: ranked(with_extra(1), (changed_weights(1), 0, 1), dp_rank=0),
    "groups with another parameter on the second rank": lambda: square(changed_weights(1)),
    "ranks apart while loading": lambda: two(rewritten(certain(), phase="loaded", time_unix_nano=9)),
    "ranks apart on the target's side": lambda: two(
        rewritten(certain(), side="target"), rewritten(certain(), side="target", checksum="b" * 16)
    ),
    "ranks apart before": lambda: two(rewritten(certain(), time_unix_nano=1)),
    "ranks apart later": lambda: two(rewritten(certain(), time_unix_nano=9)),
    "ranks of which one holds a part": lambda: two(half_fc()),
    "ranks that hold parts": lambda: two(half_fc("b"), half_fc("a")),
    "ranks of other shapes": lambda: two(reshaped()),
    "ranks without checksums": lambda: two(without_checksums(), without_checksums()),
    "groups without checksums": lambda: ranked(without_checksums(), (without_checksums(), 0, 1), dp_rank=0),
    "ranks that share otherwise": lambda: two(certain().fact("embed.shared_with_target", False)),
    "ranks with other calls of set_embed": lambda: two(
        certain().fact("sharing.set_embed_calls", 0), certain().fact("sharing.set_embed_calls", 1)
    ),
    "ranks with other calls of set_embed_and_head": lambda: two(
        certain().fact("sharing.set_embed_and_head_calls", 0), certain().fact("sharing.set_embed_and_head_calls", 1)
    ),
    "ranks with other heads": lambda: two(certain().fact("head.shared_with_target", True)),
    "ranks with other shapes of fc": lambda: two(
        certain().fact("forward.fc_shapes", [1]), certain().fact("forward.fc_shapes", [2])
    ),
    "ranks with another count": lambda: two(certain().fact("aux.count", 1)),
    "ranks with another setting": lambda: two(
        certain().fact("server.page_size", 1), certain().fact("server.page_size", 64)
    ),
    "ranks with embed alone": lambda: two(only_fact("embed.shared_with_target", True)),
    "ranks with head alone": lambda: two(only_fact("head.shared_with_target", False)),
    "ranks with architecture alone": lambda: two(only_fact("draft.architecture", "LlamaForCausalLMEagle3")),
    "a replica with 0 of 29": lambda: dp(0, 29),
    "a replica with 0 of 30": lambda: dp(0, 30),
    "a replica with 0 of 45": lambda: dp(0, 45),
    "a replica against 29": lambda: dp(0, 60, 20, 29),
    "a replica against 30": lambda: dp(0, 60, 20, 30),
    "a replica against 45": lambda: dp(0, 60, 30, 45),
    "a replica with 60 of 300": lambda: dp(60, 300, 180, 300),
    "a replica with 15 of 300": lambda: dp(15, 300, 180, 300),
    "a replica of which one round ran": lambda: dp(0, 1, 1, 1),
    "a replica with and without drafts": lambda: dp(0, 90, rates_of=some_drafts),
    "a replica with and without verdicts": lambda: dp(0, 90, unjudged=unjudged),
    "three replicas": lambda: ranked(certain(), (certain(), 0, 1), (certain(), 0, 2), dp_rank=0),
}


def target_differs(depth: int) -> Callable[[Row, int], int]:
    """Another choice of the target at one node of round 9, which has two right drafts."""

    def choice(row: Row, at: int) -> int:
        return 7 if row["round"] == 9 and at == depth else 6

    return choice


def one_parameter() -> Synthetic:
    run = certain()
    run.params = {name: row for name, row in run.params.items() if name == "model.norm.weight"}
    return run


def half_fc(mark: str = "0") -> Synthetic:
    run = certain()
    run.params["model.fc.weight"] |= {"shape": [HIDDEN // 2, 3 * HIDDEN], "elements": HIDDEN * 3 * HIDDEN // 2,
                                      "checksum": mark * 16}  # fmt: skip
    return run


def reshaped() -> Synthetic:
    run = certain()
    run.params["model.fc.weight"] |= {"shape": [3 * HIDDEN, HIDDEN]}
    return run


def without_checksums() -> Synthetic:
    run = certain()
    for row in run.params.values():
        row["checksum"] = None
    return run
