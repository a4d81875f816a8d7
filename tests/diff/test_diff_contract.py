"""Which load-time facts differ, and what each difference means."""

from __future__ import annotations

from typing import Any

import pytest

from eagletrace.diff.contract import OTHER_RELEASE, compare_contract
from eagletrace.diff.facts import Facts
from eagletrace.diff.importance import importance
from eagletrace.diff.result import FactChange
from eagletrace.format.facts import CONTRACT_KEYS

KEY: dict[str, Any] = {"shape": [4], "dtype": "float32", "checksum": "aa", "fate": "loaded"}
PARAM: dict[str, Any] = {
    "shape": [4], "dtype": "float32", "checksum": "aa", "elements": 4, "elements_loaded": 4, "shared_with": None,
    "constant": None, "checkpoint_keys": ["fc.weight"],
}  # fmt: skip
BASE: dict[str, Any] = {
    "draft.rope": {"theta": 10000.0, "scaling": "none"}, "engine.version": "0.5.23",
    "server.speculative_draft_model_path": "/models/a", "server.model_path": "/models/t",
    "aux.layers_captured": [2, 6, 9], "forward.fc_shapes": [[14, 384], [14, 128]],
    "checkpoint_keys/fc.weight": KEY, "params/draft/model.fc.weight": PARAM,
    "params/target/lm_head.weight": {"checksum": "tt"}, "server_args/port": 1, "server_args/page_size": 1,
}  # fmt: skip


def facts(**changes: Any) -> Facts:
    values = {**BASE, **{k.replace("__", "."): v for k, v in changes.items()}}
    return of({k: v for k, v in values.items() if v is not ...})


def of(values: dict[str, Any]) -> Facts:
    return Facts(values, frozenset(k.partition("/")[0] for k in values if "/" in k))


def changed(key: str, value: Any, other: Facts | None = None) -> FactChange:
    """The one change between the plain facts and those with another value of `key` (`...`: without it)."""
    values = {k: v for k, v in {**BASE, key: value}.items() if v is not ...}
    (change,) = compare_contract(other or of(BASE), of(values)).changes
    return change


def test_what_is_the_same_is_counted() -> None:
    contract = compare_contract(of(BASE), of(dict(BASE)))
    assert contract.changes == () and contract.same == len(BASE)


def test_an_entry_of_a_fact_is_named() -> None:
    change = changed("draft.rope", {"theta": 100.0, "scaling": "none"})
    assert (change.key, change.a, change.b, change.kind) == ("draft.rope.theta", 10000.0, 100.0, "changed")
    assert change.importance == "decisive"


def test_the_important_ones_come_first() -> None:
    other = of({**BASE, "server_args/port": 2, "engine.version": "0.5.9", "aux.layers_captured": [1, 5, 8]})
    assert [c.importance for c in compare_contract(of(BASE), other).changes] == ["decisive", "relevant", "noise"]


@pytest.mark.parametrize(
    ("key", "value"), [("server_args/port", 2), ("forward.fc_shapes", [[99, 384], [99, 128]])]
)  # fmt: skip
def test_what_differs_between_any_two_runs_is_noise(key: str, value: Any) -> None:
    assert changed(key, value).importance == "noise"


def test_another_folder_is_noise_only_with_the_same_checksums() -> None:
    key = "server.speculative_draft_model_path"
    assert changed(key, "/models/b").importance == "noise"
    other = of({**BASE, key: "/models/b", "checkpoint_keys/fc.weight": {**KEY, "checksum": "bb"}})
    levels = {c.key: c.importance for c in compare_contract(of(BASE), other).changes}
    assert levels == {key: "relevant", "checkpoint_keys/fc.weight/checksum": "decisive"}
    unknown = {k: v for k, v in BASE.items() if not k.startswith("checkpoint_keys/")}
    (change,) = compare_contract(of(unknown), of({**unknown, key: "/models/b"})).changes
    assert change.importance == "relevant"


def test_what_memory_held_is_noise() -> None:
    unwritten = {**PARAM, "elements_loaded": 0, "checkpoint_keys": []}
    a = of({**BASE, "params/draft/model.fc.weight": unwritten})
    assert changed("params/draft/model.fc.weight", {**unwritten, "checksum": "bb"}, a).importance == "noise"
    assert changed("params/draft/model.fc.weight", {**PARAM, "checksum": "bb"}).importance == "decisive"


def test_a_fact_that_one_run_did_not_record_says_nothing() -> None:
    change = changed("draft.rope", ...)
    assert change.unrecorded and change.importance == "minor" and change.kind == "gone"


def test_a_tensor_that_one_checkpoint_lacks_is_decisive() -> None:
    change = changed("checkpoint_keys/d2t", KEY)
    assert (change.kind, change.importance, change.unrecorded) == ("added", "decisive", False)
    assert change.a is None and change.b == {"shape": [4], "dtype": "float32", "fate": "loaded"}


def test_what_a_configuration_asks_for_and_the_other_does_not_was_looked_at() -> None:
    change = changed("aux.layers_captured (expected)", [1, 5, 8])
    assert change.importance == "decisive" and not change.unrecorded


def test_a_server_argument_is_told_once() -> None:
    both = {**BASE, "server.page_size": 1}
    (change,) = compare_contract(of(both), of({**both, "server.page_size": 16, "server_args/page_size": 16})).changes
    assert change.key == "server.page_size"


def test_true_is_not_one() -> None:
    assert changed("aux.layers_captured", True, of({**BASE, "aux.layers_captured": 1})).b is True


def test_every_fact_of_the_contract_has_an_importance_of_its_own() -> None:
    minor = {key for key in CONTRACT_KEYS if importance(key) == ("minor", "")}
    assert minor <= {"engine.name"}


def test_a_parameter_that_another_release_names_otherwise_is_the_same_one() -> None:
    old = of({**BASE, "params/draft/model.midlayer.self_attn.qkv_proj.weight": PARAM})
    new = {**BASE, "params/draft/model.layers.0.self_attn.qkv_proj.weight": PARAM}
    assert compare_contract(old, of(new)).changes == ()
    new["params/draft/model.layers.0.self_attn.qkv_proj.weight"] = {**PARAM, "checksum": "bb"}
    (change,) = compare_contract(old, of(new)).changes
    assert change.key == "params/draft/model.midlayer.self_attn.qkv_proj.weight/checksum"
    both = {**new, "params/draft/model.midlayer.self_attn.qkv_proj.weight": PARAM}  # two of one release
    (change,) = compare_contract(of(both), of(new)).changes
    assert (change.key, change.kind) == ("params/draft/model.midlayer.self_attn.qkv_proj.weight", "gone")


@pytest.mark.parametrize(
    ("key", "value", "importance"),
    [("speculative_use_rejection_sampling", False, "minor"), ("speculative_use_rejection_sampling", True, "decisive"),
     ("speculative_boundary_reduction", "rs", "minor"), ("some_port", 0, "noise")],
)  # fmt: skip
def test_an_argument_that_one_release_has_says_something_only_where_it_decides(
    key: str, value: Any, importance: str
) -> None:
    change = changed(f"server_args/{key}", value)
    assert (change.kind, change.importance) == ("added", importance)
    assert changed(f"server_args/{key}", value, of({**BASE, f"server_args/{key}": "other"})).why != OTHER_RELEASE


def test_positions_that_the_draft_is_given_say_what_is_drafted() -> None:
    change = changed("positions/depth_2", 1, of({**BASE, "positions/depth_2": 0}))
    assert (change.a, change.b, change.importance) == (0, 1, "decisive")
    assert changed("positions/depth_2", 1).unrecorded  # a run without drafts
