"""Every EAGLETRACE_* variable: good values, bad values, defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagletrace.settings import VARIABLES, Settings, from_environ, is_on

GOOD: list[tuple[str, str, Any]] = [
    ("EAGLETRACE_DIR", "/data/runs", Path("/data/runs")),
    ("EAGLETRACE_DIR", "~/runs", Path.home() / "runs"),
    ("EAGLETRACE_LEVEL", "contract", "contract"),
    ("EAGLETRACE_LEVEL", "tensors", "tensors"),
    ("EAGLETRACE_SAMPLE", "0", 0.0),
    ("EAGLETRACE_SAMPLE", "0.25", 0.25),
    ("EAGLETRACE_HIDDEN_EVERY", "1", 1),
    ("EAGLETRACE_GRAPH_TAPS", "1", True),
    ("EAGLETRACE_MAX_BYTES", "500000000", 500_000_000),
    ("EAGLETRACE_MAX_BYTES", "2G", 2 << 30),
    ("EAGLETRACE_MAX_BYTES", "1.5 MiB", 3 << 19),
    ("EAGLETRACE_FLUSH_S", "0.05", 0.05),
    ("EAGLETRACE_REDACT", "1", True),
    ("EAGLETRACE_REDACT", "off", False),
    ("EAGLETRACE_REDACT_KEY", "anything at all", "anything at all"),
    ("EAGLETRACE_RUN_ID", "night-shift.3", "night-shift.3"),
    ("EAGLETRACE_TENSOR_TOKENS", "64", 64),
    ("EAGLETRACE_TENSOR_BYTES", "1G", 1 << 30),
    ("EAGLETRACE_AUX_LAYERS", "All", "all"),
    ("EAGLETRACE_AUX_LAYERS", " 9, 2,2", "2,9"),
]
BAD = [
    ("EAGLETRACE_DIR", "~no-such-user-here/runs"),
    ("EAGLETRACE_LEVEL", "everything"),
    ("EAGLETRACE_LEVEL", "Tokens"),
    ("EAGLETRACE_SAMPLE", "1.5"),
    ("EAGLETRACE_SAMPLE", "nan"),
    ("EAGLETRACE_SAMPLE", "half"),
    ("EAGLETRACE_GRAPH_TAPS", "2"),
    ("EAGLETRACE_HIDDEN_EVERY", "0"),
    ("EAGLETRACE_HIDDEN_EVERY", "1.5"),
    ("EAGLETRACE_MAX_BYTES", "12"),
    ("EAGLETRACE_MAX_BYTES", "lots"),
    ("EAGLETRACE_MAX_BYTES", "9" * 400),
    ("EAGLETRACE_FLUSH_S", "0"),
    ("EAGLETRACE_FLUSH_S", "inf"),
    ("EAGLETRACE_REDACT", "perhaps"),
    ("EAGLETRACE_RUN_ID", "../elsewhere"),
    ("EAGLETRACE_TENSOR_TOKENS", "0"),
    ("EAGLETRACE_TENSOR_BYTES", "1K"),
    ("EAGLETRACE_AUX_LAYERS", "2,-1"),
    ("EAGLETRACE_AUX_LAYERS", "some"),
    ("EAGLETRACE_RUN_ID", "x" * 129),
]
BY_NAME = {v.name: v for v in VARIABLES}


def test_every_variable_is_tried_here() -> None:
    assert {name for name, _, _ in GOOD} == set(BY_NAME)
    assert {name for name, _ in BAD} == set(BY_NAME) - {"EAGLETRACE_REDACT_KEY"}  # any text is a key


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_good_values(name: str, text: str, value: Any) -> None:
    settings = from_environ({name: text})
    assert getattr(settings, BY_NAME[name].field) == value and not settings.bad


@pytest.mark.parametrize(("name", "text"), BAD, ids=[f"{n}={t[:12]}" for n, t in BAD])
def test_a_bad_value_gives_one_warning_and_the_default(name: str, text: str) -> None:
    settings = from_environ({name: text})
    default = getattr(Settings(), BY_NAME[name].field)
    assert getattr(settings, BY_NAME[name].field) == default
    (bad,) = settings.bad
    message = str(bad)
    assert bad.variable == name and name in message and repr(text) in message
    assert BY_NAME[name].allowed in message and str(default) in message


def test_a_bad_value_does_not_touch_the_others() -> None:
    settings = from_environ({"EAGLETRACE_LEVEL": "all", "EAGLETRACE_SAMPLE": "0.5", "EAGLETRACE_FLUSH_S": "never"})
    assert settings.sample == 0.5 and settings.level == "tokens"
    assert [b.variable for b in settings.bad] == ["EAGLETRACE_LEVEL", "EAGLETRACE_FLUSH_S"]


def test_nothing_set_gives_the_defaults_and_empty_is_unset() -> None:
    assert from_environ({}) == Settings() == from_environ(dict.fromkeys(BY_NAME, ""))


def test_redaction_refuses_tensors() -> None:
    settings = from_environ({"EAGLETRACE_REDACT": "1", "EAGLETRACE_LEVEL": "tensors"})
    assert (settings.redact, settings.level) == (True, "tokens")
    assert [b.variable for b in settings.bad] == ["EAGLETRACE_LEVEL"] and "EAGLETRACE_REDACT" in str(settings.bad[0])
    assert from_environ({"EAGLETRACE_REDACT": "1", "EAGLETRACE_LEVEL": "contract"}).level == "contract"


def test_the_key_is_never_stored() -> None:
    settings = from_environ({"EAGLETRACE_REDACT": "1", "EAGLETRACE_REDACT_KEY": "secret"})
    assert "secret" not in repr(settings.public()) and settings.public()["redact"] is True


@pytest.mark.parametrize("value", [None, "", "0", "false", "False", " no ", "off"])
def test_off(value: str | None) -> None:
    assert not is_on({} if value is None else {"EAGLETRACE": value})


@pytest.mark.parametrize(("value", "bad"), [("1", 0), ("true", 0), ("YES", 0), ("on", 0), ("maybe", 1)])
def test_on(value: str, bad: int) -> None:
    assert is_on({"EAGLETRACE": value})
    assert [b.variable for b in from_environ({"EAGLETRACE": value}).bad] == ["EAGLETRACE"] * bad
