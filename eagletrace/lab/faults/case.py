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
from eagletrace.lab.faults.rewrites import updated
from eagletrace.lab.faults.token_map import write_token_map

Kind = Literal["fault", "control"]
Flags = Mapping[str, "str | int | float | bool | None"]

_NO_FLAGS: Flags = MappingProxyType({})
_NO_ENV: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Load:
    """Requests that a case needs; None and `own` leave what the run was asked for.

    With `shared-prefix` every second prompt begins with one of a few long texts, and the rest do not.
    """

    prompts: Literal["own", "shared-prefix"] = "own"
    max_new_tokens: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True)
class Update:
    """Weights sent to the running server half-way, over SGLang's own `/update_weights_from_disk`.

    The layers of the target from the second on, with `noise` times their standard deviation added (the draft has no
    such layers), and, where `draft` names a variant, the layer and `fc` of that one (the target has none).
    """

    noise: float = 0.0
    draft: str | None = None


DIES = "the server dies before it has drafted enough"
RETRAIN = "nothing but training it again gives acceptance back"


@dataclass(frozen=True)
class Case:
    """A fault, or a control: something that looks guilty and costs nothing.

    `expected` holds the cause ids that are right, at most two (none for a control); `variant` is the
    draft of the pair that is changed; `flags` and `env` go to the server; `runtime` is a patch of its
    processes (`eagletrace.lab.runtime`); `base` is the control with the same flags and load, whose accept
    length is what the case should have reached; `proof_draft` is the variant that a user would give to
    `diagnose` as the trainer's own checkpoint, where the file served has lost what nothing else holds;
    `token_map` is the variant whose draft vocabulary is served as `--speculative-token-map`;
    `unproved` says why no replay can reproduce it and show what comes back, where none can; `case` is a public report
    of the same thing.
    """

    name: str
    kind: Kind
    title: str
    case: str
    expected: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    variant: str = "default"
    pair: str = "llama"
    engine: str = DEFAULT_ENGINE
    worker: str = "v2"
    flags: Flags = field(default_factory=lambda: _NO_FLAGS)
    env: Mapping[str, str] = field(default_factory=lambda: _NO_ENV)
    runtime: str | None = None
    load: Load = Load()
    update: Update | None = None
    base: str | None = None
    proof_draft: str | None = None
    token_map: str | None = None
    unproved: str = ""

    def public(self) -> dict[str, object]:
        """The entry of `lab faults --json`."""
        return {
            "name": self.name, "kind": self.kind, "pair": self.pair, "engine": self.engine, "worker": self.worker,
            "expected": list(self.expected), "case": self.case, "title": self.title,
        }  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """The folders to serve, and, if any, the one that is sent half-way and the file of a token map."""

    draft: Path
    target: Path
    update: Path | None = None
    token_map: Path | None = None


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
    update = None
    if case.update is not None:
        sent = Checkpoint.read(variant_beside(draft_dir, case.update.draft)) if case.update.draft else None
        update = updated(pair.target, sent, case.update.noise).write(out_dir, "update")
    token_map = None
    if case.token_map is not None:
        mapped = draft_folder(draft_dir.parent.parent, case.token_map)
        token_map = write_token_map(Checkpoint.read(mapped), out_dir)
    return Prepared(
        draft=pair.draft.write(out_dir, "draft"),
        target=pair.target.write(out_dir, "target") if target_changed else target_dir,
        update=update,
        token_map=token_map,
    )
