"""docs/benchmarks.md: what was measured here is new, what was not stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import page

FIGURE = {
    "name": "hooks", "value": 12.5, "unit": "us", "ci_low": 11.0, "ci_high": 14.0, "control_ci_low": None,
    "control_ci_high": None, "goal": 60, "holds": True,
}  # fmt: skip


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "pairs").mkdir()
    (tmp_path / "recording.json").write_text(json.dumps([FIGURE]))
    (tmp_path / "pairs" / "recording.json").write_text(json.dumps({"hooks": [12.0, 13.0]}))
    return tmp_path


def sections(text: str) -> list[str]:
    return [part.split("\n", 1)[0] for part in text.split("\n## ")[1:]]


def test_benchmarks_that_were_not_run_keep_their_sections(out: Path) -> None:
    before = page.PAGE.read_text()
    after = page.page(before, out)
    assert sections(after) == sections(before)
    unchanged = after.index("\n## background")
    assert after[unchanged:] == before[before.index("\n## background") :]
    assert "| hooks | 12.5 us | 11 to 14 | - | 60 | yes |" in after
    assert "- hooks: 12, 13\n" in after and page.machine() in after


def test_the_page_is_what_it_makes_of_itself(tmp_path: Path) -> None:
    assert page.page(page.PAGE.read_text(), tmp_path) == page.PAGE.read_text()


def test_a_first_page_has_what_was_measured(out: Path) -> None:
    assert sections(page.page("", out)) == ["recording"]
