"""Checks of the values in the file: NaN, infinity, tensors of one value."""

from __future__ import annotations

from eagletrace.check.facts import Facts
from eagletrace.check.outcome import Outcome, alarm, ok, several
from eagletrace.checkpoint import sample
from eagletrace.checkpoint.dtypes import NUMPY
from eagletrace.checkpoint.sample import Stored


def _read_keys(f: Facts) -> list[str]:
    """Keys that the engine loads (all, where that is not known), of types that can be read."""
    fates = f.landing.fates if f.landing is not None else {}
    return [
        info.key
        for info in f.draft.checkpoint.infos()
        if fates.get(info.key, "loaded") == "loaded" and NUMPY[info.dtype] is not None
    ]


def not_finite(f: Facts) -> Outcome:
    """No loaded tensor holds NaN or infinity."""
    counts = {key: sample.not_finite(Stored(f.draft.checkpoint, key)) for key in _read_keys(f)}
    wrong = {key: count for key, count in counts.items() if count}
    if not wrong:
        return ok(f"no NaN or infinity in what was sampled of {len(counts)} tensors")
    return alarm(several([f"{key} holds {count} NaN or infinite values" for key, count in wrong.items()]),
                 [{"key": key, "nan_count": count} for key, count in wrong.items()])  # fmt: skip


def constant(f: Facts) -> Outcome:
    """No loaded matrix holds one value everywhere, as far as it was sampled."""
    keys = [key for key in _read_keys(f) if len(f.draft.checkpoint.info(key).shape) == 2]
    values = {key: sample.constant(Stored(f.draft.checkpoint, key)) for key in keys}
    wrong = {key: value for key, value in values.items() if value is not None and value == value}
    if not wrong:
        return ok(f"none of {len(keys)} matrices holds one value everywhere")
    return alarm(several([f"{key} holds {value:g} wherever it was sampled" for key, value in wrong.items()]),
                 [{"key": key, "value": value} for key, value in wrong.items()])  # fmt: skip
