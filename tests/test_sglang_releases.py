"""The matrix of SGLang's releases: what is stored is what the installed engines have, and a loss is an error."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from docs import releases
from eagletrace.cli.main import main as eagletrace
from eagletrace.instrumentations.sglang import doctor, signatures
from eagletrace.instrumentations.sglang.signatures import Facts
from eagletrace.instrumentations.sglang.sources import Sources
from eagletrace.instrumentations.sglang.targets import BY_NAME, TARGETS

ROOT = Path(__file__).resolve().parents[1]
NEWEST = "0.5.23"
ENVIRONMENTS = {NEWEST: ".venv", "0.5.20": ".venv-sglang-0.5.20", "0.5.9": ".venv-sglang-0.5.9"}


def stored() -> dict[str, releases.Release]:
    return releases.loads(releases.STORED.read_text(encoding="utf-8"))


def installed(release: str) -> Path:
    """The package folder of an engine of the lab; the test is skipped where it is not set up."""
    if release == NEWEST:
        folder = doctor._package_folder("sglang")  # pyright: ignore[reportPrivateUsage]
        if folder is not None and version("sglang") == release:
            return folder
    found = list((ROOT / ENVIRONMENTS[release] / "lib").glob("python*/site-packages/sglang"))
    if not found:
        pytest.skip(f"sglang {release} is not set up here: make setup-{release}")
    return found[0]


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_the_page_is_what_was_read_and_all_targets_were_asked_for() -> None:
    text = releases.STORED.read_text(encoding="utf-8")
    assert releases.unread(text) == [], "run `make releases`: targets changed since the releases were read"
    assert releases.dumps(stored()) == text
    assert releases.page(stored()) == releases.PAGE.read_text(encoding="utf-8"), "run `make releases`"


def test_no_release_lost_a_required_target() -> None:
    found = {v: signatures.statuses(facts) for v, facts in stored().items()}
    assert len(found) >= 37 and {"0.5.3", "0.5.8.post1", "0.5.20", NEWEST} <= set(found)
    assert releases.losses(stored()) == []
    assert all(signatures.families(f) for f in found.values())
    assert signatures.families(found["0.5.12"]) == ["v1", "v2"] and signatures.families(found["0.5.13"]) == ["v2"]


@pytest.mark.parametrize("release", ENVIRONMENTS)
def test_an_installed_engine_is_as_stored(release: str) -> None:
    assert signatures.read_all(Sources(installed(release))) == stored()[release]


@pytest.mark.slow
def test_the_newest_release_that_the_registry_serves() -> None:
    """A release that came out since is no fault of this code: what it lost is a warning."""
    try:
        newest = releases.released()[-1]
        facts = releases.read_release(newest)
    except releases.RegistryError as error:
        pytest.skip(f"the registry cannot be asked: {error}")
    for line in releases.losses({newest: facts}):
        warnings.warn(f"{line}; `make releases` shows the rest", stacklevel=1)
    if newest in stored():
        assert facts == stored()[newest]


# -- a loss is found ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    """The files of the newest engine that are read, by their path below the package."""
    root = installed(NEWEST)
    sources = Sources(root)
    signatures.read_all(sources)
    files = [root.joinpath(*module.split(".")[1:]).with_suffix(".py") for module in sources.read()]
    return {str(f.relative_to(root)): f.read_text(encoding="utf-8") for f in files if f.exists()}


@pytest.fixture
def copy(modules: dict[str, str], tmp_path: Path) -> Path:
    """The package of the newest engine, of what is read, to be changed."""
    for name, text in modules.items():
        file = tmp_path / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path / "sglang"


def change(root: Path, file: str, old: str, new: str) -> None:
    path = root / file
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{file} has no {old!r} any more"
    path.write_text(text.replace(old, new), encoding="utf-8")


WORKER = "srt/speculative/eagle_worker_v2.py"
EXTEND = "def _draft_extend_for_prefill(\n        self,\n        batch: ScheduleBatch,\n        {}: torch.Tensor,"
ARGUMENT = EXTEND.format("target_hidden_states")


@pytest.mark.parametrize(
    ("file", "old", "new", "name", "why"),
    [
        (WORKER, "def verify(", "def verify_tree(", "v2.verify", "not in this release"),
        (WORKER, "class EagleDraftWorker(", "class DraftWorker(", "v2.draft", "not in this release"),
        (WORKER, ARGUMENT, EXTEND.format("states"), "v2.extend_prefill", "parameter 2 is 'states'"),
        ("srt/managers/scheduler.py", "def process_batch_result(", "def process_result(", "scheduler.results",
         "not in this release"),
        ("srt/managers/schedule_batch.py", "reqs", "requests", "v2.generate", "no ScheduleBatch.reqs"),
        ("kernels/ops/speculative/spec_tree.py", "target_predict: torch.Tensor", "predicted: torch.Tensor",
         "verify.greedy", "no parameter 'target_predict'"),
    ],
)  # fmt: skip
def test_a_lost_target_is_found(copy: Path, file: str, old: str, new: str, name: str, why: str) -> None:
    def lost() -> dict[str, str]:
        sources = Sources(copy)
        read = {n: signatures.read(sources, BY_NAME[n]) for n in {name, "verify.greedy_utils"}}
        return signatures.lost(signatures.statuses({**stored()[NEWEST], **read}))

    assert lost() == {}
    change(copy, file, old, new)
    found = lost()
    assert why in found[name] and set(found) <= {name, "v1.generate", *BY_NAME[name].alternatives}


def test_an_optional_target_may_go() -> None:
    found = signatures.statuses({**stored()[NEWEST], "verify.sample": None})
    assert found["verify.sample"] == ("missing", None) and signatures.lost(found) == {}


def test_one_worker_does_not_hide_that_the_other_lost_a_target() -> None:
    facts = dict(stored()["0.5.9"])
    assert signatures.lost(signatures.statuses({**facts, "v2.draft": None})) == {"v2.draft": "not in this release"}
    # Without its launch the worker is not hooked at all, and the other one is there for the release.
    without = {n: None if n.startswith("v2.") else f for n, f in facts.items()}
    assert signatures.lost(signatures.statuses(without)) == {}


def wheel(folder: Path, release: str, root: Path) -> None:
    """A wheel of a changed engine, as pip downloads it."""
    with zipfile.ZipFile(folder / f"sglang-{release}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in root.rglob("*.py"):
            archive.write(file, Path("sglang") / file.relative_to(root))
        info = f"sglang-{release}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {release}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def registry(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is pip's only registry; both files go elsewhere."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(releases, "STORED", tmp_path / "releases.json")
    monkeypatch.setattr(releases, "PAGE", tmp_path / "releases.md")
    yield tmp_path / "wheels"


@pytest.mark.slow
def test_the_command_fails_for_a_release_that_lost_a_target(
    copy: Path, registry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.mkdir()
    wheel(registry, "0.5.98", copy)
    change(copy, WORKER, "def verify(", "def verify_tree(")
    wheel(registry, "0.5.99", copy)
    wheel(registry, "0.5.2", copy)  # older than what is looked at
    assert releases.main([]) == 1
    assert capsys.readouterr().out == "sglang 0.5.99: v2.verify is lost (not in this release)\n"
    page = releases.PAGE.read_text(encoding="utf-8")
    assert "| 0.5.98 | v2 | nothing |" in page and "| 0.5.99 | none | v2.verify: not in this release |" in page
    assert list(releases.loads(releases.STORED.read_text(encoding="utf-8"))) == ["0.5.98", "0.5.99"]


def test_no_registry_is_a_message(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry.mkdir()
    assert releases.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("eagletrace: ") and "Traceback" not in said and not releases.STORED.exists()


# -- the user's own engine ---------------------------------------------------------------------------------------------


def pretend(monkeypatch: pytest.MonkeyPatch, release: str, folder: Path) -> None:
    """Let doctor find an engine in a folder."""

    def found(name: str) -> Any:
        return folder if name == "sglang" else None

    def known(name: str) -> str:
        return release

    monkeypatch.setattr(doctor, "_package_folder", found)
    monkeypatch.setattr(doctor, "_version", known)


def test_doctor_says_what_differs(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, NEWEST, copy)
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    assert eagletrace(["doctor", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["activation"]["workers_traced"] == ["v2"]
    assert {h["target"] for h in report["hooks"]} == {t.path for t in BY_NAME.values()}
    change(copy, WORKER, ARGUMENT, EXTEND.format("states"))
    assert eagletrace(["doctor", "--json"]) == 3
    hooks = {h["target"]: h for h in json.loads(capsys.readouterr().out)["hooks"]}
    changed = hooks[BY_NAME["v2.extend_prefill"].path]
    assert changed["required"] and changed["status"] == "changed" and "parameter 2 is 'states'" in changed["detail"]
    assert eagletrace(["doctor"]) == 3
    shown = capsys.readouterr().out
    assert "changed" in shown and "1 required hook targets are missing or changed" in shown


def test_doctor_knows_which_target_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "0.5.9", installed("0.5.9"))
    report = doctor.inspect_environment({})
    assert report["activation"]["workers_traced"] == ["v1", "v2", "multi_layer"]
    hooks = {h["target"]: h for h in report["hooks"]}
    gone = hooks[BY_NAME["verify.greedy"].path]
    assert not gone["required"] and gone["detail"].startswith("verify.greedy_utils does its work")
    assert all(h["status"] == "found" for h in report["hooks"] if h["required"])


# -- reading and comparing ---------------------------------------------------------------------------------------------

MODULES = {
    "engine/base.py": "class Base:\n    inherited: int\n    def method(self): pass\n",
    "engine/batch.py": """
from sglang.engine.base import Base
from outside import Other
class Batch(Base):
    reqs: list
    constant = 1
    def __init__(self):
        self.given = 2
    @property
    def computed(self): return 3
class Foreign(Other): pass
""",
    "engine/worker.py": """
from typing import TYPE_CHECKING, Optional
if TYPE_CHECKING:
    from sglang.engine.batch import Batch
if True:
    from compiled import kernel
else:
    def fallback(a, b=1, *, c): pass
def plain(a, b=1, *rest, c, **more): pass
def local():
    from compiled import hidden
    kernel(1, out=2, seed=3)
    kernel(1, seed=3, out=2, extra=4)
class Worker:
    def run(self, batch: "Batch", other: Optional[Batch] = None): pass
    @staticmethod
    def load(model, weights): pass
    @classmethod
    def build(cls, batch: Batch): pass
    async def wait(self, batch: Batch | None): pass
""",
    "engine/broken.py": "def broken(:",
}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    for name, text in MODULES.items():
        path = tmp_path / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sources(tmp_path / "sglang")


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("Worker.run", ("batch", "other")), ("Worker.load", ("model", "weights")), ("Worker.build", ("batch",)),
        ("Worker.wait", ("batch",)), ("plain", ("a", "b", "*rest", "c", "**more")), ("fallback", ("a", "b", "*", "c")),
        ("kernel", ("*", "out", "seed")),
    ],
)  # fmt: skip
def test_functions_are_read(sources: Sources, path: str, parameters: tuple[str, ...] | None) -> None:
    function = sources.function(f"sglang.engine.worker:{path}")
    assert function is not None and function.parameters == parameters
    for name in ("batch", "other"):
        assert function.annotations.get(name, "Batch") == "Batch"


@pytest.mark.parametrize("path", ["sglang.engine.worker:hidden", "sglang.engine.worker:Worker.gone",
                                  "sglang.engine.worker:Gone.run", "sglang.engine.gone:run",
                                  "sglang.engine.broken:broken", "outside.module:run"])  # fmt: skip
def test_what_is_not_there_is_not_found(sources: Sources, path: str) -> None:
    assert sources.function(path) is None


def test_attributes_are_read(sources: Sources) -> None:
    own = {"reqs", "constant", "__init__", "given", "computed"}
    assert sources.attributes("sglang.engine.batch", "Batch") == own | {"inherited", "method"}
    assert sources.attributes("sglang.engine.worker", "Batch") == own | {"inherited", "method"}  # through its import
    assert sources.attributes("sglang.engine.batch", "Foreign") is None  # a base of another package may have anything


def test_a_function_about_to_be_wrapped() -> None:
    target = BY_NAME["v2.extend_prefill"]

    class Worker:
        def same(self, batch: Any, target_hidden_states: Any, next_token_ids: Any, more: Any = None) -> None: ...
        def other(self, batch: Any, next_token_ids: Any, target_hidden_states: Any) -> None: ...
        def short(self, batch: Any) -> None: ...
        def wrapped(self, *args: Any, **kwargs: Any) -> None: ...

    assert signatures.of_callable(target, Worker.same) is None
    assert signatures.of_callable(target, Worker.wrapped) is None  # another tool's
    assert "parameter 2 is 'next_token_ids'" in str(signatures.of_callable(target, Worker.other))
    assert "no parameter 'target_hidden_states'" in str(signatures.of_callable(target, Worker.short))

    def greedy(*, accept_index: Any, candidates: Any, target_predict: Any, retrive_next_token: Any,
               retrive_next_sibling: Any) -> None: ...  # fmt: skip

    def blind(candidates: Any) -> None: ...

    assert signatures.of_callable(BY_NAME["verify.greedy"], greedy) is None
    assert "accept_index" in str(signatures.of_callable(BY_NAME["verify.greedy"], blind))

    class Loader:
        @staticmethod
        def load(model: Any, weights: Any, target_device: Any) -> None: ...

    assert signatures.of_callable(BY_NAME["loader.load_weights"], vars(Loader)["load"]) is None


def test_facts_survive_the_file() -> None:
    some = Facts(("batch", "*", "x"), ("Batch.reqs",))
    empty: releases.Release = {t.name: None for t in TARGETS}
    read = {"1": empty, "2": {**empty, "v2.draft": some}, "3": {**empty, "v2.draft": Facts(None)}, "4": empty}
    text = releases.dumps(read)
    assert releases.loads(text) == read and releases.unread(text) == []
    asked = json.loads(text)
    asked["targets"]["v2.draft"]["path"] = "elsewhere:draft"
    del asked["targets"]["v1.draft"]
    assert set(releases.unread(json.dumps(asked))) == {"v2.draft", "v1.draft"}
