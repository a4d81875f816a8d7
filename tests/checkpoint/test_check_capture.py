"""capture.json says of the installed releases what their sources say."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from docs.capture import meaning, of_folder, read
from eagletrace.checkpoint.engines import release
from eagletrace.checkpoint.engines.rules import RELEASES, RULES
from eagletrace.lab.engines import EngineMissingError, engine_python

ROOT = Path(__file__).resolve().parents[2]
ENGINES = [
    pytest.param("0.5.9", marks=pytest.mark.lab_0_5_9),
    pytest.param("0.5.20", marks=pytest.mark.lab_0_5_20),
    pytest.param("0.5.23"),
]


@pytest.mark.parametrize("version", ENGINES)
def test_capture_of_an_installed_release(version: str) -> None:
    try:
        python = engine_python(version)
    except EngineMissingError as error:
        pytest.skip(str(error))
    program = "import importlib.metadata as m; print(m.distribution('sglang').locate_file(''))"
    site = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    found = of_folder(Path(site))
    assert len(found) > 100
    known = release(version)
    stored = json.loads((files("eagletrace.checkpoint.engines") / "capture.json").read_text())
    assert set(found) <= set(stored)
    assert {name: known.id_meaning(name) for name in found} == found


def test_releases_are_those_whose_hooks_were_read() -> None:
    """One list of releases: that of docs/sglang-releases.json."""
    assert list(RELEASES) == json.loads((ROOT / "docs" / "sglang-releases.json").read_text())["releases"]
    assert all(rules.since in RELEASES for stretch in RULES.values() for rules in stretch)


SOURCE = """
class Base:
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.model.layers_to_capture = [val + 1 for val in layer_ids]
class Served(Base): ...
class Deaf: ...
class ServedEagle(Base): ...
EntryClass = [Served, Deaf, ServedEagle]
"""


def test_a_method_is_inherited_and_drafts_are_left_out() -> None:
    assert read([("a", SOURCE)]) == {"Served": "outputs", "Deaf": None}


def test_a_method_that_does_something_else_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="does not know"):
        meaning("self.model.layers_to_capture = layer_ids[::-1]")
