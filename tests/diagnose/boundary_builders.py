"""How the runs of `boundary_cases` are built."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from runtime_cases import (
    CHUNK,
    failing,
    input_norm,
    late,
    long_requests,
    quantised,
    varied,
)
from synthetic import AUX, HIDDEN, LAYER, ROPE, SANE_MAP, Row, Synthetic, by, key, param

WIDTH = AUX * HIDDEN


def facts(run: Synthetic | None = None, /, **values: Any) -> Synthetic:
    """A run with some facts changed: `a__b=(actual, expected)`, or `a__b=actual`."""
    run = run or Synthetic(rounds=0)
    for name, value in values.items():
        pair = value if isinstance(value, tuple) else (value,)
        run.fact(name.replace("__", "."), *pair)
    return run


def wrapped(flags: dict[str, bool]) -> Synthetic:
    """A target with a language model inside: capture flags by path, of which the inner one counts."""
    return facts().fact("target.architecture", "Wrapper").fact("aux.capture_enabled", flags, source="language_model")


def ended_before_sharing(parameter: str) -> Synthetic:
    """A server that ended after loading: a parameter of the draft that no tensor wrote was not shared yet."""
    run = Synthetic(rounds=0)
    for row in run.params.values():
        row["phase"] = "loaded"
    run.params[parameter] |= {"shared_with": None, "elements_loaded": 0, "checkpoint_keys": []}
    return run


def counted(accepted: int, rounds: int, deeper: Sequence[float] = (1.0, 1.0), **changes: Any) -> Synthetic:
    """`accepted` of `rounds` first drafts are accepted, the first ones."""

    def rates(row: Row) -> Sequence[float]:
        return (1.0 if row["round"] <= accepted else 0.0), *deeper

    fields: dict[str, Any] = {"rounds": rounds, "requests": 1, "rates_of": rates, "out_of_vocab": 0.0}
    return Synthetic(**{**fields, **changes})


def hooks(status: str, *, required: bool = True, errors: int = 0) -> Synthetic:
    run = Synthetic()
    run.hooks = [{"target": "v2.verify", "status": status, "required": required, "detail": "moved", "errors": errors}]
    return run


def hidden(**rows: tuple[float, int]) -> Synthetic:
    """Hidden states by stage: root mean square and NaN count."""
    run = Synthetic()
    run.hidden = [{"round": 1, "request_seq": 1, "stage": stage, "rms": rms, "nan_count": bad, "width": HIDDEN}
                  for stage, (rms, bad) in rows.items()]  # fmt: skip
    return run


def parameter(name: str, **changes: Any) -> Synthetic:
    run = Synthetic()
    run.params[name] |= changes
    return run


def layers_left(*left: int, built: int = 1, idle: str = "") -> Synthetic:
    """Decoder layers in the file alone, by number, and of those built one norm that no tensor wrote."""
    run = Synthetic(rounds=0)
    for number in range(1, built):
        for norm in ("input_layernorm", "hidden_norm"):
            name = f"model.layers.{number}.{norm}.weight"
            seen = {"elements_loaded": 0, "checkpoint_keys": [], "constant": 1.0} if norm == idle else {}
            run.params[name] = {**run.params["model.norm.weight"], "name": name, **seen}
    for number in left:
        for part in ("o_proj", "q_proj"):
            run.dropped(f"layers.{number}.self_attn.{part}.weight", [HIDDEN, HIDDEN])
    return run


def of_steps(draft: int, target: int = 0) -> Synthetic:
    """Depth 2 collapses; the draft has parameters of so many steps, and the target ones that are called like it."""
    run = Synthetic(rates=(0.72, 0.05, 0.05))
    for side, steps in (("draft", draft), ("target", target)):
        for step in range(steps):
            name = f"draft_step_{step}.norm.weight"
            run.params[f"{side}/{name}"] = {**param(name, [4], [name]), "side": side}
    return run


def target_alone() -> Synthetic:
    run = Synthetic(rounds=0)
    for row in run.params.values():
        row["side"] = "target"
    return run


def middling(fails: Callable[[Row], bool]) -> Synthetic:
    """A kind of round at half the rate of the others."""
    return failing(fails, 0.36, rounds=1600)


def weak(fails: Callable[[Row], bool]) -> Synthetic:
    """A kind of round that fails among others that work no better than a half."""
    return varied(lambda row: ((0.0 if fails(row) else 0.5), 0.7, 0.7))


def _few(row: Row) -> Row:
    seq, number = row["request_seq"], row["round"]
    return {
        "position": 100 + seq + 2 * (row["request_round"] - 1), "batch_size": 1 + number % 2, "row": number // 2 % 2,
        "cached_tokens": 95 + seq if seq % 2 else 0, "graph": number % 2 == 0,
    }  # fmt: skip


def few(requests: int, per_request: int, kinds: int = 1) -> Synthetic:
    """Of every kind of round a few: `kinds` requests with an image, with a grammar, and that sample."""

    def columns(seq: int) -> Row:
        return {"prompt_tokens": 100 + seq, "has_image": seq <= kinds, "has_grammar": kinds < seq <= 2 * kinds,
                "temperature": 0.5 if 2 * kinds < seq <= 3 * kinds else 0.0}  # fmt: skip

    run = Synthetic(rounds=requests * per_request, requests=requests, round_columns=_few, request_columns=columns)
    return run.fact("server.chunked_prefill_size", CHUNK)


def alike(same: int, kinds: int) -> Synthetic:
    """As `few`, with so many requests of every kind of which `same` have one prompt."""
    run = few(4 * kinds, 10, kinds)
    columns: Callable[[int], Row] = run.request_columns  # type: ignore[assignment]

    def prompt(seq: int) -> str:
        kind, number = divmod(seq - 1, kinds)
        return f"{kind}-{0 if number < same else number}"

    run.request_columns = lambda seq: {**columns(seq), "prompt_hash": prompt(seq)}
    return run


def one_prompt(_seq: int) -> Row:
    return {"prompt_hash": "one"}


def one_token(drafts: int, accepted: int = 0, of: int = 40) -> Synthetic:
    """Token 0 is drafted in the first rounds, another one in each of the others."""

    def token(row: Row) -> int:
        return 0 if row["round"] <= drafts else row["round"]

    return counted(accepted, of, token_of=token)


def fused(applied: Callable[[int], bool], **changes: Any) -> Synthetic:
    """Whether fc ran, by round."""

    def columns(row: Row) -> Row:
        return {"fc_applied": applied(row["round"])}

    return Synthetic(round_columns=columns, **changes)


def shifted(shift: Callable[[int], int], rates: Sequence[float] = (0.8, 0.1, 0.1)) -> Synthetic:
    """Positions too far from depth 2 on, by round."""

    def of(row: Row) -> int:
        return shift(row["round"])

    return Synthetic(rates=tuple(rates), rope_shift_of=of)


def in_release(version: str, shift: int) -> Synthetic:
    return facts(Synthetic(rates=(0.8, 0.1, 0.1), rope_shift=shift), engine__version=version)


def part_after_update(rate: float) -> Synthetic:
    return failing(late, rate, rounds=1600).event("weights_changed", side="draft", at=500_500)


def eighths_after_update() -> Synthetic:
    run = failing(lambda row: row["round"] > 4000, 0.63, rounds=8000)
    return run.event("weights_changed", side="draft", at=4_000_500)


def sharp() -> Synthetic:
    """Requests with images fail, in all others every draft is right."""
    return varied(lambda row: (0.0 if row["has_image"] else 1.0, 1.0, 1.0))


def prompts(tokens: Callable[[int], int], cached: Callable[[int], int]) -> Synthetic:
    """Requests of some prompt tokens, of which some were cached."""

    def columns(row: Row) -> Row:
        seq = row["request_seq"]
        return {"position": tokens(seq) + row["request_round"] - 1, "cached_tokens": cached(seq)}

    return varied(round_columns=columns, request_columns=by(lambda seq: {"prompt_tokens": tokens(seq)}))


def soon_dead() -> Synthetic:
    """Five requests with two right rounds each up to position 160, and none past it."""

    def place(row: Row) -> Row:
        return {"position": 154 + 2 * row["request_round"]}

    def rates(row: Row) -> Sequence[float]:
        return float(row["position"] < 160), 1.0, 1.0

    return long_requests(round_columns=place, rates_of=rates, rounds=210, requests=5)


def further(row: Row) -> Row:
    return {"position": 190 + row["request_seq"] + 2 * row["request_round"]}


def past_position(after: float, before: float) -> Synthetic:
    def rates(row: Row) -> Sequence[float]:
        return (after if row["position"] >= 160 else before), 0.7, 0.7

    return long_requests(rates_of=rates)


def masks(masked: int, rejected: int, accepted: int = 0) -> Synthetic:
    """First drafts are rejected behind the accepted ones; a grammar is seen at some, and masks the first ones."""

    def mask(row: Row, accepted: bool) -> bool | None:
        return row["round"] <= masked if row["round"] <= rejected else None

    return counted(accepted, 40, masked=mask)


def halves(early: float, later: float) -> Synthetic:
    """Rates in the earlier and later half of each request."""

    def rates(row: Row) -> Sequence[float]:
        return (early if row["request_round"] <= 30 else later), 0.7, 0.7

    return long_requests(rates_of=rates, rounds=2400, requests=40)


def long_prompts() -> Synthetic:
    """Half of the requests begin past a position, and these fail."""

    def place(row: Row) -> Row:
        return {"position": (1000 if row["request_seq"] % 2 else 100) + row["request_round"]}

    def rates(row: Row) -> Sequence[float]:
        return (0.0 if row["position"] >= 1000 else 0.72), 0.7, 0.7

    return long_requests(round_columns=place, rates_of=rates)


def lone_scale(name: str = "other.weight_scale", **columns: Any) -> Synthetic:
    run = Synthetic()
    run.keys[name] = key(name, [1], fate="dropped", **columns)
    return run


def unit_scales() -> Synthetic:
    """Stored in eight bits, and served as stored: the scale is one."""
    run = quantised("dropped")
    run.keys["midlayer.self_attn.o_proj.weight_scale"] |= {"rms": 1.0}
    run.params[f"{LAYER}.self_attn.o_proj.weight"]["rms"] = 40.0
    return run


def served_in_eight_bits(dtype: str = "float8_e4m3fn") -> Synthetic:
    run = quantised(decoded=False)
    run.params[f"{LAYER}.self_attn.o_proj.weight"]["dtype"] = dtype
    return run


def without_values() -> Synthetic:
    run = Synthetic()
    for row in run.keys.values():
        row["rms"] = None
    return run


def fc_norms() -> Synthetic:
    run = facts(draft__config={"use_aux_norm": True})
    run.keys["aux_norm_low.weight"] = key("aux_norm_low.weight", [HIDDEN], fate="dropped")
    return run


def cached_from(number: int) -> Synthetic:
    """From round 500 on nothing is accepted; requests have cached tokens from another round on."""

    def columns(row: Row) -> Row:
        return {"cached_tokens": 40 if row["round"] > number else 0, "position": 100 + row["request_round"]}

    return failing(late, round_columns=columns, rounds=800)


def two_samples() -> Synthetic:
    run = hidden(fc_out=(1.0, 0), draft_in=(1.0, 0))
    run.hidden.append({**run.hidden[0], "nan_count": 3})
    return run


def two_nans() -> Synthetic:
    run = parameter("model.fc.weight", nan_count=1, rms=math.nan)
    run.params["model.norm.weight"] |= {"nan_count": 2, "elements_loaded": 0, "checkpoint_keys": [], "rms": math.nan}
    return run


def past_length(rounds: int, rate: float) -> Synthetic:
    """Some rounds at and past position 1000, for which the draft is not configured."""

    def place(row: Row) -> Row:
        return {"position": 1000 if row["round"] <= rounds else 10}

    def rates(row: Row) -> Sequence[float]:
        return (rate if row["position"] >= 1000 else 0.8), 0.7, 0.7

    run = Synthetic(rounds=200, round_columns=place, rates_of=rates)
    return facts(run, draft__rope={**ROPE, "max_position": 1000})


def apart(value: float, in_file: float) -> Synthetic:
    run = parameter("model.fc.weight", rms=value)
    run.keys["fc.weight"]["rms"] = in_file
    return run


def other_size() -> Synthetic:
    run = parameter("model.fc.weight", rms=0.7)
    run.keys["fc.weight"]["elements"] = 7
    return run


def one_seen() -> Synthetic:
    run = Synthetic(rounds=0)
    for name, row in run.params.items():
        if name != "model.norm.weight":
            row["elements_loaded"] = None
    return run


def fc_bias(**columns: Any) -> Synthetic:
    run = Synthetic(rounds=0)
    name = "model.fc.bias"
    run.params[name] = {**run.params["model.norm.weight"], "name": name, "constant": None, "elements_loaded": 0,
                        "checkpoint_keys": [], **columns}  # fmt: skip
    return run


def both_norms() -> Synthetic:
    run = input_norm(asked=True, tensor=True, served=True).fact("draft.config", {"norm_before_fc": True, "fc_norm": 3})
    for number in range(2):
        run.params[f"model.fc_norm.{number}.weight"] = {
            **run.params["model.norm.weight"],
            "name": f"model.fc_norm.{number}.weight",
        }
        run.keys[f"fc_norm.{number}.weight"] = key(f"fc_norm.{number}.weight", [HIDDEN])
    return run


def engine_accepts(accepted: int, engine: int) -> Synthetic:
    """One request of 300 rounds; the engine counts other correct drafts."""
    return counted(accepted, 300, (0.0, 0.0), request_columns=by(lambda seq: {"engine_accepted": engine}))


def requests(columns: Callable[[int], Row], factor: float = 1.0) -> Synthetic:
    return Synthetic(request_columns=columns, engine_rounds_factor=factor)


def unverified(columns: Callable[[int], Row] | None = None, **changes: Any) -> Synthetic:
    """Tokens came, and no round was recorded or counted."""
    run = Synthetic(rounds_recorded=False, engine_rounds_factor=0.0, **changes)
    run.request_columns = columns or run.request_columns
    return run


def maps(offsets: Row, ids: Row, served: int | None = None) -> Synthetic:
    """d2t read both ways; without an agreement there is no t2d."""
    unmarked: Row = {**SANE_MAP, "t2d_agreement": None}
    run = facts(d2t__as_offsets={**unmarked, **offsets}, d2t__as_ids={**unmarked, **ids})
    return run if served is None else run.fact("hot_token_id", {**SANE_MAP, "max": served})


def region(
    dead: int,
    tokens: int,
    *,
    live: int = 76,
    right: int = 76,
    share: float = 0.98765,
    marked: int = 384,
    gap: bool = False,
) -> Synthetic:
    """`dead` rejected drafts of `tokens` neighbours, and `live` drafts of other tokens of which some are accepted."""

    def token(row: Row) -> int:
        number = row["round"]
        place = number % tokens
        return 100 + place + (50 if gap and place >= tokens // 2 else 0) if number <= dead else 120 + number % 5

    def rates(row: Row) -> Sequence[float]:
        return float(dead < row["round"] <= dead + right), 0.0, 0.0

    run = Synthetic(rounds=dead + live, requests=1, token_of=token, rates_of=rates)
    return facts(run, t2d__agreement={"share": share, "marked": marked, "map_length": 384})
