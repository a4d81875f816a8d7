"""All load-time facts of a run under one kind of key, so that two runs can be compared fact by fact.

A key of the table `contract` is its own (`draft.rope`; what the checkpoint asks for is `draft.rope (expected)`). Facts
of other tables stand under the table's name: `checkpoint_keys/fc.weight`, `params/draft/model.fc.weight`,
`hooks/<target>`, `events/<kind>`, `positions/depth_2` (how far the positions that the draft was given there lie from
those of training, in most drafts); and those of `run.json` as `run/torch`, `settings/level`, `server_args/port`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from eagletrace.store import Run

EXPECTED = " (expected)"
COUNTED_EVENTS = (
    "weights_changed/draft",
    "weights_changed/target",
    "engine_exception",
    "hook_error",
    "rows_dropped",
    "retraction",
)
_RUN_KEYS = ("eagletrace", "sglang", "torch", "python", "host", "engine")
_TABLES = {
    "checkpoint_keys": "SELECT key, shape, dtype, checksum, fate FROM checkpoint_keys",
    "params": "SELECT side || '/' || name, shape, dtype, checksum, elements, elements_loaded, shared_with, epoch, "
    "nan_count, constant, checkpoint_keys, module_type FROM params",
    "hooks": "SELECT target, any_value(status ORDER BY status), any_value(required), sum(errors) > 0 FROM hooks "
    "GROUP BY target",
}
_FIELDS = {
    "checkpoint_keys": ("shape", "dtype", "checksum", "fate"),
    "params": (
        "shape", "dtype", "checksum", "elements", "elements_loaded", "shared_with", "epoch", "nan_count", "constant",
        "checkpoint_keys", "module_type",
    ),
    "hooks": ("status", "required", "errors"),
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Values by key. `tables` are those with rows: what such a table does not hold, the server did not have."""

    values: dict[str, Any]
    tables: frozenset[str]

    def recorded(self, key: str) -> bool:
        """Whether the absence of a key means that there is no such thing, and not that nobody looked."""
        table, part, _ = key.partition("/")
        return table in self.tables if part else key.removesuffix(EXPECTED) in self.values

    def of(self, table: str) -> dict[str, dict[str, Any]]:
        """The entries of one table by their name in it."""
        prefix = f"{table}/"
        return {k.removeprefix(prefix): v for k, v in self.values.items() if k.startswith(prefix)}


def read_facts(run: Run) -> Facts:
    """Read what was recorded of the start of a run."""
    values: dict[str, Any] = {}
    for key, expected, actual in run.execute("SELECT key, expected, actual FROM contract"):
        values[str(key)] = _json(actual)
        if expected is not None:
            values[f"{key}{EXPECTED}"] = _json(expected)
    for table, sql in _TABLES.items():
        for name, *fields in run.execute(sql):
            values[f"{table}/{name}"] = dict(zip(_FIELDS[table], fields, strict=True))
    events = dict(
        run.execute(
            "SELECT CASE WHEN kind = 'weights_changed' THEN concat_ws('/', kind, try_cast(detail AS JSON) ->> 'side') "
            "ELSE kind END AS kind, count(*) FROM events GROUP BY ALL"
        )
    )
    if events:
        values |= {f"events/{kind}": int(events.get(kind, 0)) for kind in COUNTED_EVENTS}
    shifts = run.execute("SELECT depth, arg_max(shift, drafts) FROM rope_offsets GROUP BY depth ORDER BY depth")
    values |= {f"positions/depth_{depth}": int(shift) for depth, shift in shifts}
    for name in ("tp_rank", "dp_rank", "pp_rank"):
        ((count,),) = run.execute(f"SELECT count(DISTINCT {name}) FROM all_ranks.contract")
        values[f"ranks/{name}"] = int(count)
    values |= _of_run_json(run.info.raw)
    return Facts(values, frozenset(k.partition("/")[0] for k in values if "/" in k))


def _of_run_json(raw: dict[str, Any]) -> dict[str, Any]:
    """Versions, settings and server arguments."""
    found: dict[str, Any] = {f"run/{key}": raw[key] for key in _RUN_KEYS if key in raw}
    for table in ("settings", "server_args"):
        given: Any = raw.get(table)
        if isinstance(given, dict):
            found |= {f"{table}/{k}": v for k, v in cast("dict[str, Any]", given).items()}
    return found


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text
