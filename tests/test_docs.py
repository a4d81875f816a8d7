"""The documentation says what the code does: generated parts are fresh, names exist, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import generate, support
from eagletrace.cli.main import COMMANDS
from eagletrace.lab.engines import ENGINES, python_variable
from eagletrace.settings import VARIABLES
from eagletrace.store.dataset.source import CACHE_BYTES, CACHE_DIR

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_NAMES = {c.__name__.rpartition(".")[2] for c in COMMANDS}


def code(text: str) -> str:
    """What stands in code spans and code blocks."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))])


def test_generated_parts_are_fresh() -> None:
    stale = [str(path.relative_to(ROOT)) for path in generate.stale()]
    assert not stale, f"run `make docs`: {stale}"


def test_a_changed_cell_is_noticed() -> None:
    changed = README.replace("| `EAGLETRACE` | 1, or 0 for off |", "| `EAGLETRACE` | yes |")
    assert changed != README and generate.fill(changed) == README


def test_every_generated_part_is_used_and_made() -> None:
    used = [name for path in generate.WITH_PARTS for name in re.findall(r"generated: ([a-z-]+)", path.read_text())]
    assert sorted(used) == sorted(generate.PARTS)


def test_every_command_is_in_the_readme() -> None:
    assert {name for name, _ in generate.command_parsers()} == COMMAND_NAMES
    listed = set(re.findall(r"^\| `eagletrace (\w+)", README, re.MULTILINE))
    assert listed == COMMAND_NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"(?:^|[\s(/])eagletrace ([a-z]+)\b", code(page.read_text(encoding="utf-8"))))
    assert named <= COMMAND_NAMES, f"{page.name} names commands that do not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_variables_that_are_named_exist(page: Path) -> None:
    known = {v.name for v in VARIABLES} | {"EAGLETRACE", CACHE_DIR, CACHE_BYTES} | {python_variable(v) for v in ENGINES}
    assert set(re.findall(r"\bEAGLETRACE(?:_[A-Z0-9_]+)?\b", page.read_text(encoding="utf-8"))) <= known


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {t for page in PAGES for t in re.findall(r"\bmake ([a-z]+)\b", code(page.read_text(encoding="utf-8")))}
    assert {"demo", "test", "docs", "matrix"} <= named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}, which does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {generate.anchor(h) for h in headings}, f"{page.name} links to {link}"


def test_folders_of_the_architecture_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([\w./]+?/)`", text, re.MULTILINE)
    assert len(named) > 8 and [folder for folder in named if not (ROOT / folder).is_dir()] == []


def test_every_package_is_in_the_architecture() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    folders = [p for p in (ROOT / "eagletrace").iterdir() if p.is_dir() and not p.is_symlink()]
    packages = [p.name for p in folders if not p.name.startswith("_")]
    assert [name for name in packages if f"`eagletrace/{name}/`" not in text] == []


def test_the_readme_warns_before_anything_else() -> None:
    head = README[:600]
    assert "token ids" in head and "EAGLETRACE_REDACT=1" in head


def test_the_picture_is_the_tools_own_and_self_contained() -> None:
    svg = (ROOT / "docs/diagnosis.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg") and "aux.not_captured" in svg.replace("&#160;", " ")
    assert "url(http" not in svg and "@font-face" not in svg
    assert re.findall(r"/(?:work|tmp|root|home)/", svg) == []


@pytest.mark.parametrize("test", support.tests())
def test_a_test_that_the_support_table_names_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


def test_a_support_table_that_is_untrue_fails_the_session(pytester: pytest.Pytester) -> None:
    """A session over all tests, once with a named test that passes, once with one that is left out."""
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_one="def test_served(): pass")
    pytester.makeini("[pytest]\ntestpaths = .\n")
    pytester.makepyfile(**{"docs/__init__": "", "docs/support": "def tests(): return ['test_one.py::test_served']"})
    assert pytester.runpytest_subprocess().ret == 0
    pytester.makepyfile(
        **{"docs/support": "def tests(): return ['test_one.py::test_served', 'test_one.py::test_gone']"}
    )
    done = pytester.runpytest_subprocess()
    assert done.ret == 1
    done.stdout.fnmatch_lines("*by a test that did not pass: test_one.py::test_gone*")
    assert pytester.runpytest_subprocess("test_one.py").ret == 0  # of some tests nothing is asked
