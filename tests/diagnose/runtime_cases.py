"""Runs in which the runtime fails some kinds of rounds: one small change of a healthy run that has every kind.

What no CPU can produce (captured graphs, images, grammars, sampling, transfers) is tested on these runs alone; the
recorder's own writer writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from synthetic import HEALTHY_RATES, HIDDEN, ROPE, Row, Synthetic, key, param

DEAD = (0.0, 0.1, 0.1)
REQUESTS, PER_REQUEST = 40, 20
CHUNK = 64


def _request(seq: int) -> Row:
    return {"prompt_tokens": 100 + seq, "has_image": seq % 5 == 1, "has_grammar": seq % 5 == 2,
            "temperature": 0.7 if seq % 5 == 3 else 0.0}  # fmt: skip


def _round(row: Row) -> Row:
    seq, number = row["request_seq"], row["round"]
    size = 1 + number % 4
    return {
        "position": 100 + seq + 2 * (row["request_round"] - 1), "batch_size": size, "row": number // 4 % size,
        "cached_tokens": (0, 95 + seq, 30)[seq % 3], "graph": number // 2 % 3 == 0,
    }  # fmt: skip


def varied(rates_of: Callable[[Row], Sequence[float]] | None = None, **changes: Any) -> Synthetic:
    """A healthy run with requests and rounds of every kind; `rates_of` says where it is not healthy."""
    fields: dict[str, Any] = {"rounds": REQUESTS * PER_REQUEST, "requests": REQUESTS, "round_columns": _round,
                              "request_columns": _request, "rates_of": rates_of}  # fmt: skip
    return Synthetic(**{**fields, **changes}).fact("server.chunked_prefill_size", CHUNK)


def failing(fails: Callable[[Row], bool], rate: float = 0.0, **changes: Any) -> Synthetic:
    """A varied run whose first drafts are accepted at `rate` in some rounds."""
    return varied(lambda row: (rate, *HEALTHY_RATES[1:]) if fails(row) else HEALTHY_RATES, **changes)


def cached(row: Row) -> bool:
    return row["cached_tokens"] > 0


def chunked(row: Row) -> bool:
    return row["prompt_tokens"] - row["cached_tokens"] > CHUNK


def near_edge(row: Row) -> bool:
    edge = row["cached_tokens"] + (row["prompt_tokens"] - row["cached_tokens"] - 1) // CHUNK * CHUNK
    return row["position"] - edge < 16 and (cached(row) or chunked(row))


def one_row(row: Row) -> bool:
    return row["batch_size"] > 1 and row["row"] == 1


def before_last_row(row: Row) -> bool:
    return row["row"] < row["batch_size"] - 1


def batch_of_four(row: Row) -> bool:
    return row["batch_size"] == 4 and not row["graph"]


def first_round(row: Row) -> bool:
    return row["request_round"] == 1


def graph(row: Row) -> bool:
    return row["graph"]


def graph_of_two(row: Row) -> bool:
    return row["graph"] and row["batch_size"] == 2


def image(row: Row) -> bool:
    return row["has_image"]


def grammar(row: Row) -> bool:
    return row["has_grammar"]


def sampled(row: Row) -> bool:
    return row["temperature"] > 0


def late(row: Row) -> bool:
    return row["round"] > 500


def updated(*sides: str, at: int = 500, **changes: Any) -> Synthetic:
    """Weights are updated behind a round, and acceptance ends with it."""
    run = failing(lambda row: row["round"] > at, **changes)
    for side in sides:
        run.event("weights_changed", side=side, epoch=1, at=1000 * at + 500)
    return run


def long_requests(fails: Callable[[Row], bool] | None = None, **changes: Any) -> Synthetic:
    """Twelve requests of 60 rounds, of which each goes on past position 160."""

    def place(row: Row) -> Row:
        return {"position": 100 + row["request_seq"] + 2 * row["request_round"]}

    def rates(row: Row) -> Sequence[float]:
        return DEAD if fails is not None and fails(row) else HEALTHY_RATES

    fields: dict[str, Any] = {"rounds": 720, "requests": 12, "round_columns": place, "rates_of": rates}
    return Synthetic(**{**fields, **changes})


def past(position: int) -> Callable[[Row], bool]:
    return lambda row: row["position"] >= position


def length_limit() -> Synthetic:
    def token(row: Row) -> int | None:
        return 7 if row["position"] >= 160 else None

    return long_requests(past(160), token_of=token)


def short_context() -> Synthetic:
    """Past the length in the draft's configuration, which is where it stops."""
    return length_limit().fact("draft.rope", {**ROPE, "max_position": 160})


def falls_along_requests() -> Synthetic:
    def rates(row: Row) -> Sequence[float]:
        return max(0.05, 0.9 - row["request_round"] / 60), 0.7, 0.7

    return long_requests(rates_of=rates)


def other_rope() -> Synthetic:
    return Synthetic(rates=(0.2, 0.2, 0.2)).fact("draft.rope", {**ROPE, "theta": 5e5})


def recurrence() -> Synthetic:
    return Synthetic(rates=(0.72, 0.05, 0.05))


def positions_shifted() -> Synthetic:
    return Synthetic(rates=(0.72, 0.05, 0.05), rope_shift=1)


def constant_token() -> Synthetic:
    return Synthetic(rates=(0.01, 0.0, 0.0), token_of=lambda row: 0)


def grammar_masked() -> Synthetic:
    def masked(row: Row, accepted: bool) -> bool | None:
        return not accepted if row["has_grammar"] else None

    return varied(masked=masked)


def graph_width() -> Synthetic:
    run = Synthetic(rates=(0.2, 0.2, 0.2))
    return run.fact("graph.draft_extend_input_width", HIDDEN, 3 * HIDDEN)


def quantised(
    fate: str | None = "loaded", *, decoded: bool = True, rms: float = 40.0, dtype: str = "float8_e4m3fn"
) -> Synthetic:
    """A draft whose o_proj is stored in eight bits with a scale; undecoded it is served with another `rms`."""
    run = Synthetic(rates=(0.2, 0.2, 0.2) if fate == "dropped" or not decoded else HEALTHY_RATES)
    name = "midlayer.self_attn.o_proj.weight"
    run.keys[name] |= {"dtype": dtype, "rms": 40.0}
    run.keys[f"{name}_scale"] = key(f"{name}_scale", [1], fate=fate)
    run.params["model.midlayer.self_attn.o_proj.weight"]["rms"] = 0.1 if decoded else rms
    return run


def wrong_values() -> Synthetic:
    run = Synthetic(rates=(0.2, 0.2, 0.2))
    run.params["model.fc.weight"]["rms"] = 1.7
    return run


def input_norm(*, asked: bool, tensor: bool, served: bool, loaded: bool = True) -> Synthetic:
    """A norm over all aux states, in the configuration, the checkpoint and the engine."""
    run = Synthetic().fact("draft.config", {"norm_before_fc": asked})
    if tensor:
        run.keys["input_norm.weight"] = key("input_norm.weight", [3 * HIDDEN], fate="loaded" if loaded else "dropped")
    if served:
        run.params["model.input_norm.weight"] = param("model.input_norm.weight", [3 * HIDDEN], ["input_norm.weight"])
    return run


def embeddings_of_a_relative() -> Synthetic:
    run = Synthetic(rates=(0.2, 0.2, 0.2)).fact("embed.in_checkpoint", True)
    return run.fact("embed.replaced", {"changed": True, "relative_difference": 0.2, "cosine": 0.98, "by": "set_embed"})


RUNTIME_FAULTS: dict[str, tuple[Callable[[], Synthetic], str]] = {
    "cached requests": (lambda: failing(cached), "kv.prefix"),
    "prompts in chunks": (lambda: failing(chunked), "kv.prefix"),
    "one row": (lambda: failing(one_row), "batch.row"),
    "only the last row right": (lambda: failing(before_last_row), "batch.row"),
    "one batch size": (lambda: failing(batch_of_four), "batch.row"),
    "first round": (lambda: failing(first_round), "round.first"),
    "graphs": (lambda: failing(graph), "graph.stale"),
    "graphs of one size": (lambda: failing(graph_of_two), "graph.stale"),
    "width of a graph": (graph_width, "graph.stale"),
    "images": (lambda: failing(image), "multimodal.embeds"),
    "grammars": (lambda: failing(grammar), "grammar.masked"),
    "masked drafts": (grammar_masked, "grammar.masked"),
    "an update": (lambda: updated("draft", "target"), "weights.changed"),
    "an update of the target": (lambda: updated("target"), "weights.changed"),
    "weights changed in place": (lambda: failing(late, rounds=1600), "weights.changed"),
    "length limit": (length_limit, "length.limit"),
    "length limit in the configuration": (short_context, "length.limit"),
    "rotary settings": (other_rope, "rope.mismatch"),
    "recurrence": (recurrence, "recurrence.hidden"),
    "shifted positions": (positions_shifted, "position.offset"),
    "scales unused": (lambda: quantised("dropped"), "weights.quantization"),
    "scales not applied": (lambda: quantised(decoded=False), "weights.quantization"),
    "other values": (wrong_values, "weights.quantization"),
    "norm ignored": (lambda: input_norm(asked=False, tensor=True, served=False, loaded=False), "fc.norm_mismatch"),
    "norm unknown to the engine": (lambda: input_norm(asked=True, tensor=False, served=False), "fc.norm_mismatch"),
    "norm without its tensor": (lambda: input_norm(asked=True, tensor=False, served=True), "fc.norm_mismatch"),
    "embeddings of a relative": (embeddings_of_a_relative, "target.mismatch"),
}
