"""The package as users get it: built, installed beside its declared dependencies alone, without torch or SGLang."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import eagletrace
from eagletrace.cli.demo import DEMO_RUN
from tests.store.runs import small_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
ABSENT = ("torch", "sglang", "transformers", "safetensors")
Done = subprocess.CompletedProcess[str]


def run(*command: str | Path, cwd: Path, **environ: str) -> Done:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("EAGLETRACE", "SGLANG", "PYTHON"))}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, cwd=cwd,
                          env=clean | environ)  # fmt: skip


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source distribution, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment with the wheel and what its metadata asks for, and nothing else.

    The dependencies are this environment's own files, linked one package at a time, so that what is not declared
    (torch above all) cannot be seen.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "venv", symlinks=True)
    interpreter = folder / "venv" / "bin" / "python"
    done = run(sys.executable, "-m", "pip", "--python", interpreter, "install", "--no-deps", "--no-index", wheel,
               cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    where = run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    site = Path(where.stdout.strip())
    metadata = importlib.metadata.PathDistribution(next(site.glob("eagletrace-*.dist-info")))
    for name in sorted(_closure(metadata.requires or [])):
        _link(name, site)
    return interpreter


def _closure(requirements: list[str], seen: set[str] | None = None) -> set[str]:
    """Names of the distributions that requirements need, their own requirements included; extras left out."""
    names = set[str]() if seen is None else seen
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in names:
            names.add(name)
            _closure(importlib.metadata.requires(name) or [], names)
    return names


def _link(name: str, site: Path) -> None:
    own = [Path(sysconfig.get_path(scheme)) for scheme in ("purelib", "platlib")]
    tops = {file.parts[0] for file in importlib.metadata.files(name) or []}
    for top in tops - {"..", "__pycache__"}:
        source = next((folder / top for folder in own if (folder / top).exists()), None)
        if source is not None and not (site / top).exists():
            (site / top).symlink_to(source)


def command(python: Path, *arguments: str | Path) -> Done:
    return run(python.with_name("eagletrace"), *arguments, cwd=python.parent)


# -- what is inside ----------------------------------------------------------------------------------------------------


def _expected() -> set[str]:
    """Files of the package as they stand in a wheel; the two top-level folders under the names that they install as."""
    found = {f"eagletrace/{p.relative_to(ROOT / 'eagletrace')}" for p in (ROOT / "eagletrace").rglob("*.py")}
    for folder, pattern in (("instrumentations", "*.py"), ("queries", "*.sql")):
        found |= {f"eagletrace/{p.relative_to(ROOT)}" for p in (ROOT / folder).rglob(pattern)}
    pages = (ROOT / "eagletrace" / "report" / "html").rglob("*.*")
    found |= {f"eagletrace/{p.relative_to(ROOT / 'eagletrace')}" for p in pages if p.suffix != ".pyc"}
    found |= {f"eagletrace/{p.relative_to(ROOT / 'eagletrace')}" for p in DEMO_RUN.rglob("*") if p.is_file()}
    return {*found, "eagletrace/py.typed", "eagletrace.pth", "eagletrace.start"}


def test_the_wheel_is_complete(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert _expected() - names == set()
    assert {n for n in names if n.endswith(".sql")} and any(n.startswith("eagletrace/data/demo-run/") for n in names)
    assert not [n for n in names if "__pycache__" in n or n.startswith(("tests/", "docs/", "eagletrace-runs/"))]
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (info,) = {n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n}
    entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert "[sglang.srt.plugins]\neagletrace = eagletrace.activate:register" in entry_points
    assert "[opentelemetry_instrumentor]" in entry_points and "[console_scripts]" in entry_points
    assert archive.read("eagletrace.pth").decode() == (ROOT / "eagletrace.pth").read_text()
    assert len(archive.read("eagletrace.pth").decode().splitlines()) == 1  # site reads line by line


def test_the_sdist_holds_the_sources_and_the_tests(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "eagletrace.pth", "eagletrace/activate.py",
            "tests/test_wheel.py", "docs/architecture.md"} <= names  # fmt: skip


# -- what it does without torch ----------------------------------------------------------------------------------------


def test_only_what_is_declared_is_there(python: Path) -> None:
    script = f"import importlib.util as u; print([n for n in {ABSENT!r} if u.find_spec(n)])"
    assert run(python, "-c", script, cwd=python.parent).stdout.strip() == "[]"
    done = run(sys.executable, "-m", "pip", "--python", python, "check", cwd=python.parent)
    assert done.returncode == 0, done.stdout
    where = run(python, "-c", "import eagletrace; print(eagletrace.__file__)", cwd=python.parent).stdout
    assert str(ROOT / "eagletrace") not in where


def test_the_demo_names_the_cause(python: Path) -> None:
    done = command(python, "demo", "--json")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "fault" and result["causes"][0]["id"] == "aux.not_captured"
    assert result["causes"][0]["evidence"] and result["causes"][0]["fix"]
    shown = command(python, "demo")
    assert shown.returncode == 1 and "aux.not_captured" in shown.stdout and "Traceback" not in shown.stderr


def test_a_recorded_run_is_diagnosed(python: Path, tmp_path: Path) -> None:
    done = command(python, "diagnose", small_run(tmp_path / "run"), "--json")
    assert done.returncode == 3, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "inconclusive" and result["acceptance"]["rounds"] == 3
    assert result["acceptance"]["accepted"] == 5


def test_the_report_is_written(python: Path, tmp_path: Path) -> None:
    """Templates, styles and scripts are in the wheel; tokens as text need a library more, and the message says so."""
    output = tmp_path / "page.html"
    done = command(python, "report", small_run(tmp_path / "run"), "-o", output)
    assert done.returncode == 0, done.stderr
    page = output.read_text(encoding="utf-8")
    assert "INCONCLUSIVE" in page and "Observable" in page and "Content-Security-Policy" in page
    (tmp_path / "tokenizer.json").write_text("{}")
    asked = command(python, "report", tmp_path / "run", "--tokenizer", tmp_path)
    assert asked.returncode == 2 and "eagletrace[report]" in asked.stderr


def test_the_other_commands(python: Path) -> None:
    assert command(python, "--version").stdout.strip() == f"eagletrace {eagletrace.__version__}"
    explained = command(python, "explain", "aux.not_captured")
    assert explained.returncode == 0 and "aux hidden states" in explained.stdout
    listed = json.loads(command(python, "queries", "--json").stdout)
    assert {"acceptance-by-depth", "accept-length"} <= {q["name"] for q in listed["queries"]}
    doctor = command(python, "doctor", "--json")
    assert doctor.returncode == 3 and json.loads(doctor.stdout)["sglang"] is None
    lab = command(python, "lab", "faults")
    assert lab.returncode in (0, 2) and "Traceback" not in lab.stderr


# -- what starting Python costs ----------------------------------------------------------------------------------------

LOADED = "import sys; print(sorted({m.split('.')[0] for m in sys.modules} & set(%r)))"
OURS = ["eagletrace", "wrapt", "torch", "numpy", "pyarrow", "duckdb", "opentelemetry", "rich", "sglang"]


@pytest.mark.parametrize("environ", [{}, {"EAGLETRACE": "0"}, {"EAGLETRACE": "false"}, {"EAGLETRACE": ""}], ids=str)
def test_off_no_process_imports_anything_of_ours(python: Path, environ: dict[str, str]) -> None:
    done = run(python, "-c", LOADED % OURS, cwd=python.parent, **environ)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_on_a_process_without_the_engine_imports_nothing_heavy(python: Path) -> None:
    done = run(python, "-c", LOADED % OURS, cwd=python.parent, EAGLETRACE="1")
    assert (done.stdout.strip(), done.stderr) == ("['eagletrace', 'wrapt']", "")
