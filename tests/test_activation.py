"""The gate: who starts tracing, when, and that it costs nothing where it is off. A fake engine stands in for SGLang."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from eagletrace import activate
from eagletrace.activate import PLUGIN_NAME, shut_out
from eagletrace.instrumentor import EagletraceInstrumentor

ROOT = Path(__file__).resolve().parents[1]
SCHEDULER = """
class Scheduler:
    def __init__(self, server_args=None, *, fail=None):
        if fail is not None:
            raise fail
        self.server_args = server_args
"""
HEAVY = "torch numpy pyarrow duckdb opentelemetry rich sglang"
LOADED = f"sorted({{m.split('.')[0] for m in sys.modules}} & set('{HEAVY} wrapt eagletrace'.split()))"
START = """
import json, os, sys
if not os.environ.get("NO_SITE"):
    import site
    site.addsitedir(os.environ["SITE"])
def scheduler():
    from sglang.srt.managers import scheduler
    return scheduler.Scheduler
def wrapped():
    return type(vars(scheduler())["__init__"]).__name__ == "FunctionWrapper"
"""


class Engine:
    """A folder with a fake SGLang, and one with the `.pth` file of the package."""

    def __init__(self, path: Path, *, plugins: bool) -> None:
        self.path = path
        managers = path / "engine" / "sglang" / "srt" / "managers"
        managers.mkdir(parents=True)
        for folder in (managers, managers.parent, managers.parent.parent):
            (folder / "__init__.py").touch()
        (managers / "scheduler.py").write_text(SCHEDULER)
        if plugins:
            (managers.parent / "plugins").mkdir()
            (managers.parent / "plugins" / "__init__.py").touch()
        self.site = path / "site"
        self.site.mkdir()
        (self.site / "eagletrace.pth").write_text((ROOT / "eagletrace.pth").read_text())

    def python(self, script: str, **environ: str) -> tuple[Any, str]:
        """Run a script that prints one JSON value last; returns it and stderr.

        `-S`: the environment's own `.pth` files are left out, so that ours alone acts.
        """
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("EAGLETRACE", "SGLANG"))}
        paths = [self.path / "engine", ROOT, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        clean |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "SITE": str(self.site), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(
            [sys.executable, "-S", "-c", START + script], capture_output=True, text=True, timeout=120,
            env=clean | environ, cwd=self.path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture
def old(tmp_path: Path) -> Engine:
    """A release without plugins, such as 0.5.9."""
    return Engine(tmp_path, plugins=False)


@pytest.fixture
def new(tmp_path: Path) -> Engine:
    """A release with plugins, 0.5.11 and later."""
    return Engine(tmp_path, plugins=True)


# -- off ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "0", "false", "", " OFF "])
def test_off_imports_and_wraps_nothing(old: Engine, value: str | None) -> None:
    environ = {} if value is None else {"EAGLETRACE": value}
    seen, stderr = old.python(f"before = {LOADED}; print(json.dumps([before, wrapped(), {LOADED}]))", **environ)
    assert seen == [[], False, ["sglang"]] and not stderr


def test_the_plugin_wraps_nothing_when_off(new: Engine) -> None:
    script = f"from eagletrace.activate import register; register(); print(json.dumps([wrapped(), {LOADED}]))"
    assert new.python(script)[0] == [False, ["eagletrace", "sglang"]]  # not even wrapt


# -- on ----------------------------------------------------------------------------------------------------------------


def test_a_process_without_the_engine_imports_nothing_heavy(old: Engine) -> None:
    seen, stderr = old.python(f"print(json.dumps({LOADED}))", EAGLETRACE="1")
    assert seen == ["eagletrace", "wrapt"] and not stderr


def test_an_old_release_is_reached_through_the_pth_file(old: Engine) -> None:
    seen, _ = old.python(f"print(json.dumps([wrapped(), {LOADED}]))", EAGLETRACE="1")
    assert seen == [True, ["eagletrace", "sglang", "wrapt"]]  # importing the scheduler's module alone attaches nothing
    assert old.python("print(json.dumps(wrapped()))", EAGLETRACE="1", NO_SITE="1")[0] is False


def test_a_new_release_is_reached_through_the_plugin_alone(new: Engine) -> None:
    assert new.python("print(json.dumps(wrapped()))", EAGLETRACE="1")[0] is False
    script = "from eagletrace.activate import register; register(); register(); print(json.dumps(wrapped()))"
    assert new.python(script, EAGLETRACE="1")[0] is True


def test_the_plugin_works_after_the_modules_import_too(new: Engine) -> None:
    script = """
before = vars(scheduler())["__init__"]
from eagletrace.activate import register
register(); register()
now = vars(scheduler())["__init__"]
print(json.dumps([wrapped(), now.__wrapped__ is before]))
"""
    assert new.python(script, EAGLETRACE="1")[0] == [True, True]  # wrapped once, not twice


# -- shut out ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugins", "out"),
    [(None, False), ("", False), (" , ", False), ("eagletrace", False), ("other, eagletrace", False), ("other", True),
     ("eagletrace2", True)],
)  # fmt: skip
def test_shut_out(plugins: str | None, out: bool) -> None:
    reason = shut_out({} if plugins is None else {"SGLANG_PLUGINS": plugins})
    assert (reason is not None) is out
    if reason is not None:
        assert "SGLANG_PLUGINS" in reason and repr(plugins) in reason and PLUGIN_NAME in reason


def test_being_shut_out_is_said_where_a_scheduler_is_built(new: Engine) -> None:
    script = "s = scheduler()(server_args=5); print(json.dumps(s.server_args))"
    value, stderr = new.python(script, EAGLETRACE="1", SGLANG_PLUGINS="other")
    assert value == 5
    assert "eagletrace" in stderr and "SGLANG_PLUGINS='other'" in stderr and "shut out" in stderr
    assert new.python(script, EAGLETRACE="1", SGLANG_PLUGINS="other,eagletrace") == (5, "")
    assert new.python(script, EAGLETRACE="0", SGLANG_PLUGINS="other") == (5, "")


def test_a_release_without_plugins_cannot_be_shut_out(old: Engine) -> None:
    seen, stderr = old.python("print(json.dumps(wrapped()))", EAGLETRACE="1", SGLANG_PLUGINS="other")
    assert seen is True and not stderr


# -- instrument() and uninstrument() -----------------------------------------------------------------------------------

BOTH = """
import eagletrace
if os.environ.get("IMPORTED_BEFORE"):
    original = vars(scheduler())["__init__"]
eagletrace.uninstrument()
eagletrace.instrument()
eagletrace.instrument()
states = [wrapped(), os.environ.get("EAGLETRACE")]
original = vars(scheduler())["__init__"].__wrapped__
eagletrace.uninstrument()
eagletrace.uninstrument()
states += [vars(scheduler())["__init__"] is original, wrapped(), os.environ.get("EAGLETRACE")]
eagletrace.instrument()
states += [wrapped(), vars(scheduler())["__init__"].__wrapped__ is original]
eagletrace.uninstrument()
states += [vars(scheduler())["__init__"] is original]
print(json.dumps(states))
"""


@pytest.mark.parametrize("before", [None, "0"])
@pytest.mark.parametrize("imported", ["", "1"])
def test_both_are_idempotent_and_put_everything_back(new: Engine, before: str | None, imported: str) -> None:
    environ = {"IMPORTED_BEFORE": imported} | ({} if before is None else {"EAGLETRACE": before})
    assert new.python(BOTH, **environ)[0] == [True, "1", True, False, before, True, True, True]


def test_uninstrument_before_the_engine_is_imported(new: Engine) -> None:
    script = "import eagletrace; eagletrace.instrument(); eagletrace.uninstrument(); print(json.dumps(wrapped()))"
    assert new.python(script)[0] is False


def test_uninstrument_leaves_what_somebody_else_wrapped_since(new: Engine) -> None:
    script = """
import eagletrace
eagletrace.instrument()
def theirs(self): pass
scheduler().__init__ = theirs
eagletrace.uninstrument()
print(json.dumps(vars(scheduler())["__init__"] is theirs))
"""
    assert new.python(script)[0] is True


# -- entry points ------------------------------------------------------------------------------------------------------


def test_entry_points_lead_here() -> None:
    groups = {"sglang.srt.plugins": activate.register, "opentelemetry_instrumentor": EagletraceInstrumentor}
    for group, expected in groups.items():
        (entry,) = importlib.metadata.entry_points(group=group, name=PLUGIN_NAME)
        assert entry.load() is expected


def test_opentelemetrys_instrumentor_needs_the_variable(new: Engine) -> None:
    script = """
from eagletrace.instrumentor import EagletraceInstrumentor
one = EagletraceInstrumentor()
one.instrument(tracer_provider=None)
states = [wrapped(), list(one.instrumentation_dependencies())]
os.environ["EAGLETRACE"] = "1"
one.instrument()
states += [wrapped()]
one.uninstrument()
print(json.dumps([*states, wrapped()]))
"""
    assert new.python(script)[0] == [False, ["sglang >= 0.5.3"], True, False]


# -- what goes wrong never reaches the engine --------------------------------------------------------------------------

BUILD = """
from types import SimpleNamespace
print(json.dumps(scheduler()(server_args=SimpleNamespace(model_path="m", page_size=5)).server_args.page_size))
"""
NO_FOLDER = "/proc/no-folder-can-be-made-here"


@pytest.mark.slow
def test_an_unwritable_folder_gives_one_warning_and_the_server_serves(old: Engine) -> None:
    value, stderr = old.python(BUILD, EAGLETRACE="1", EAGLETRACE_DIR=NO_FOLDER)
    (line,) = stderr.splitlines()
    assert value == 5 and "cannot write a trace" in line and NO_FOLDER in line and "EAGLETRACE_DIR" in line


@pytest.mark.slow
def test_a_bad_value_is_named_once_and_the_server_serves(old: Engine) -> None:
    value, stderr = old.python(BUILD, EAGLETRACE="1", EAGLETRACE_SAMPLE="lots", EAGLETRACE_DIR=NO_FOLDER)
    (line,) = [line for line in stderr.splitlines() if "EAGLETRACE_SAMPLE" in line]
    assert value == 5 and "'lots'" in line and "0 to 1" in line and "using 1.0" in line


@pytest.mark.slow
def test_the_engines_own_errors_pass_unchanged(old: Engine) -> None:
    script = """
error = ValueError("the engine's own")
try:
    scheduler()(fail=error)
except ValueError as caught:
    print(json.dumps(caught is error))
"""
    assert old.python(script, EAGLETRACE="1", EAGLETRACE_DIR=NO_FOLDER)[0] is True


def test_the_processes_of_a_redacted_run_share_a_random_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLETRACE_REDACT", "1")
    monkeypatch.delenv("EAGLETRACE_REDACT_KEY", raising=False)
    activate.instrument()
    key = os.environ["EAGLETRACE_REDACT_KEY"]
    assert len(key) == 64
    activate.uninstrument()
    assert "EAGLETRACE_REDACT_KEY" not in os.environ
    activate.instrument()
    assert os.environ["EAGLETRACE_REDACT_KEY"] != key
    activate.uninstrument()


def test_a_key_that_was_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLETRACE_REDACT", "1")
    monkeypatch.setenv("EAGLETRACE_REDACT_KEY", "mine")
    activate.instrument()
    activate.uninstrument()
    assert os.environ["EAGLETRACE_REDACT_KEY"] == "mine"
