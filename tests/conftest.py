"""The order of files, and the support table: a session over all tests fails when a test that it names did not pass."""

from __future__ import annotations

from collections import Counter

import pytest

from docs import support

passed = set[str]()


def untrue(passed: set[str]) -> list[str]:
    """Tests that docs/support.py names and that did not pass."""
    return [test for test in support.tests() if test not in passed]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start servers come first, the longest foremost: what is short fills the processes at the end."""
    servers = Counter(item.path for item in items if item.get_closest_marker("lab"))
    items.sort(key=lambda item: -servers[item.path])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what passed."""
    if report.when == "call" and report.passed:
        passed.add(report.nodeid)


def of_all_tests(config: pytest.Config) -> bool:
    """Whether nothing was selected: as `make test` calls it."""
    everything = config.args_source is not pytest.Config.ArgsSource.ARGS
    return everything and not (config.getoption("keyword") or config.getoption("markexpr"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a session over all tests whose support table is untrue."""
    if hasattr(session.config, "workerinput") or session.config.getoption("collectonly"):
        return
    missing = untrue(passed) if of_all_tests(session.config) else []
    if missing and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.config.stash[UNTRUE] = missing


UNTRUE = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which cells are untrue."""
    for test in config.stash.get(UNTRUE, []):
        terminalreporter.write_line(f"docs/support.md says yes by a test that did not pass: {test}", red=True)
