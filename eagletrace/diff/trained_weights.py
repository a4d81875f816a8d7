"""Whether the draft that is served has the weights of training: tensor by tensor, from both runs' checksums.

Training has its own names and the file those of its export; both have one canonical name (`checkpoint/names.py`). What
an engine fuses (`qkv_proj`) needs no rule: the run of a server has a checksum of each tensor of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eagletrace.checkpoint.names import canonical, canonical_names
from eagletrace.diff.facts import Facts
from eagletrace.diff.trained import Frozen, State, TrainedTensor

EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"
_SERVED_PARTS = ("layers", "fc", "norm", "embed_tokens", "lm_head", "input_norm", "fc_norm", "d2t", "t2d")
_EQUALS = {EMBED: "training.embed_equals_target", HEAD: "training.head_equals_target"}
_MAPS = ("d2t", "t2d")


def compare_weights(training: Facts, served: Facts) -> tuple[TrainedTensor, ...]:
    """Every tensor of training and of the served checkpoint."""
    keys = served.of("checkpoint_keys")
    names = {canonical(name): name for name in training.of("params/draft")}
    by_canonical = canonical_names(keys)
    if not keys:
        return tuple(_tensor(training, name, None, "unknown", "the server's run has no checkpoint_keys")
                     for name in names.values())  # fmt: skip
    found = [_compared(training, served, canon, name, by_canonical.get(canon)) for canon, name in names.items()]
    return (*found, *_extra(keys, by_canonical, names))


def frozen(training: Facts, served: Facts) -> tuple[Frozen, ...]:
    """The parameters that were not trained, and whether they are the target's."""
    return tuple(
        Frozen(name, equals_target(training, served, canonical(name)))
        for name in training.values.get("training.frozen") or ()
    )


def equals_target(training: Facts, served: Facts, canon: str) -> bool | None:
    """Whether training's embedding or head is the target's: as it was compared, or by the served target's checksum."""
    if canon not in _EQUALS:
        return None
    compared: Any = training.values.get(_EQUALS[canon])
    if isinstance(compared, Mapping):
        return bool(compared.get("equal"))
    mine = _param(training.of("params/draft"), canon)
    theirs = _param(served.of("params/target"), canon)
    if mine is None or theirs is None or mine[1].get("shape") != theirs[1].get("shape"):
        return None
    state = _state(training, mine[0], mine[1], theirs[1])[0]
    return None if state == "unknown" else state in ("same", "rounded")


def _param(params: Mapping[str, dict[str, Any]], canon: str) -> tuple[str, dict[str, Any]] | None:
    return next(((name, entry) for name, entry in params.items() if canonical(name) == canon), None)


def _tensor(
    training: Facts, name: str, key: str | None, state: State, detail: str = "",
    checksums: tuple[str | None, str | None] = (None, None),
) -> TrainedTensor:  # fmt: skip
    return TrainedTensor(name, key, state, name in (training.values.get("training.trained") or ()), detail, checksums)


def _compared(training: Facts, served: Facts, canon: str, name: str, key: str | None) -> TrainedTensor:
    mine = training.of("params/draft")[name]
    if key is None:
        state, detail = _absent(training, served, canon, name)
        return _tensor(training, name, None, state, detail, (mine.get("checksum"), None))
    entry = served.of("checkpoint_keys")[key]
    state, detail = _state(training, name, mine, entry)
    if entry.get("fate") == "dropped" and state in ("same", "rounded"):
        state, detail = "not_loaded", "in the file, and the engine dropped it"
    return _tensor(training, name, key, state, detail, (mine.get("checksum"), entry.get("checksum")))


def _state(training: Facts, name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[State, str]:
    """Whether two tensors have the same values, rounded or not."""
    if list(mine.get("shape") or ()) != list(theirs.get("shape") or ()):
        return "differs", f"shape {mine.get('shape')} in training, {theirs.get('shape')} served"
    if not mine.get("checksum") or not theirs.get("checksum"):
        return "unknown", "no checksum was recorded" + (" (a shard)" if not mine.get("checksum") else "")
    if mine["checksum"] == theirs["checksum"]:
        return "same", ""
    roundings: Any = (training.values.get("training.rounded") or {}).get(name) or {}
    for dtype, rounded in roundings.items():
        if rounded == theirs["checksum"]:
            return "rounded", dtype
    return "differs", "other values"


def _absent(training: Facts, served: Facts, canon: str, name: str) -> tuple[State, str]:
    """What becomes of a tensor of training that the served file has not."""
    trained = name in (training.values.get("training.trained") or ())
    if canon in _MAPS:
        mapped: Any = training.values.get("hot_token_id") or {}
        whole = mapped.get("identity") and mapped.get("length") == training.values.get("draft.vocab_size")
        return ("left_out", "the vocabulary is whole") if whole else ("missing", "not in the served file")
    if canon in _EQUALS and _from_target(served, canon):
        equal = equals_target(training, served, canon)
        if equal is None:
            return "unknown", "served from the target, with which it was not compared: record training with target="
        return ("from_target", "") if equal else ("differs", "served with the target's, which training has not")
    if not trained and canon.partition(".")[0] not in _SERVED_PARTS:
        return "left_out", "only training needs it"
    return "missing", "not in the served file"


def _from_target(served: Facts, canon: str) -> bool:
    if canon == HEAD:
        return served.values.get("head.shared_with_target") is True
    param = _param(served.of("params/draft"), canon)
    return param is not None and str(param[1].get("shared_with") or "").startswith("target:")


def _extra(
    keys: Mapping[str, Mapping[str, Any]], by_canonical: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[TrainedTensor]:
    known = {key for canon, key in by_canonical.items() if canon in names}
    for key, entry in keys.items():
        if key not in known and entry.get("fate") != "ignored_by_engine":
            detail = "in the served file, and not in training"
            yield TrainedTensor(None, key, "extra", None, detail, (None, entry.get("checksum")))
