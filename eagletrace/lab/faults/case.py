"""One case of the catalogue: what is changed, on which engine, and what a diagnosis must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from eagletrace.errors import EagletraceError
from eagletrace.lab.engines import DEFAULT_ENGINE
from eagletrace.lab.faults.changes import Change, PairFiles
from eagletrace.lab.faults.checkpoint import Checkpoint

Kind = Literal["fault", "control"]
Variant = Literal["default", "full_vocab", "other_layers", "own_embeddings"]
Flags = Mapping[str, "str | int | float | bool | None"]

_NO_FLAGS: Flags = MappingProxyType({})
_NO_ENV: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Case:
    """A fault, or a control: something that looks guilty and costs nothing.

    `expected` holds the cause ids that are right, at most two (none for a control); `variant` is the
    draft of the pair that is changed; `flags` and `env` go to the server; `case` is a public report
    of the same thing.
    """

    name: str
    kind: Kind
    title: str
    case: str
    expected: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    variant: Variant = "default"
    pair: str = "llama"
    engine: str = DEFAULT_ENGINE
    worker: str = "v2"
    flags: Flags = field(default_factory=lambda: _NO_FLAGS)
    env: Mapping[str, str] = field(default_factory=lambda: _NO_ENV)

    def public(self) -> dict[str, object]:
        """The entry of `lab faults --json`."""
        return {
            "name": self.name, "kind": self.kind, "pair": self.pair, "engine": self.engine, "worker": self.worker,
            "expected": list(self.expected), "case": self.case, "title": self.title,
        }  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """The folders to serve."""

    draft: Path
    target: Path


def draft_folder(pair_dir: Path, variant: str) -> Path:
    """The draft of a pair: `drafts/<variant>`, or `draft` in a pair that has only one."""
    folder = pair_dir / "drafts" / variant
    if folder.is_dir():
        return folder
    if variant == "default" and (pair_dir / "draft").is_dir():
        return pair_dir / "draft"
    raise EagletraceError(f"{pair_dir} has no draft {variant!r}; `eagletrace lab build` makes a complete pair")


def variant_beside(draft: Path, variant: str) -> Path:
    """The draft itself, or another variant of the same pair: the folder of that name beside it."""
    if variant in ("default", draft.name):
        return draft
    folder = draft.parent / variant
    if folder.is_dir():
        return folder
    raise EagletraceError(f"this case changes the draft {variant!r}, and there is none beside {draft}")


def materialize(case: Case, pair_dir: Path, out_dir: Path) -> Prepared:
    """`prepare` for a pair's folder, which holds `target/` and `drafts/<variant>/`."""
    return prepare(case, draft_folder(pair_dir, case.variant), pair_dir / "target", out_dir)


def prepare(case: Case, draft_dir: Path, target_dir: Path, out_dir: Path) -> Prepared:
    """Write the case's draft (and its target, when that is changed) below `out_dir`, neutrally named.

    Neither the case's name nor the variant's stands in any path or file written. NoEffectError when a
    change does not fit the pair.
    """
    pair = PairFiles(Checkpoint.read(draft_dir), Checkpoint.read(target_dir))
    untouched = pair.target.digest()
    for change in case.changes:
        change.apply(pair)
    target_changed = pair.target.digest() != untouched
    return Prepared(
        draft=pair.draft.write(out_dir, "draft"),
        target=pair.target.write(out_dir, "target") if target_changed else target_dir,
    )
