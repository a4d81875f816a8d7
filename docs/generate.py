"""`make docs`: fills the generated parts of README.md and docs/ from the one place in the code that knows them.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; everything else is written by hand.
`docs/causes.md` and `docs/diagnosis.svg` are generated as a whole. `python -m docs.generate --check` says what is
stale (exit status 1) and writes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from docs import support
from eagletrace.cli import lab
from eagletrace.cli.demo import DEMO_RUN
from eagletrace.cli.main import COMMANDS
from eagletrace.diagnose import CAUSES, diagnose
from eagletrace.diagnose.causes import CauseInfo
from eagletrace.diagnose.checks import load_checks
from eagletrace.format import TABLES
from eagletrace.format.attributes import ATTRIBUTES
from eagletrace.format.facts import CONTRACT_KEYS, EVENT_KINDS
from eagletrace.format.schema import PROCESS_COLUMNS, Column
from eagletrace.instrumentations.patching import Target
from eagletrace.instrumentations.sglang.targets import BY_NAME
from eagletrace.report.metrics import METRICS, PREFIX
from eagletrace.report.picture import diagnosis_svg
from eagletrace.settings import VARIABLES, Settings
from eagletrace.store import open_run
from eagletrace.store.sqlfile import load_folder

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "diagnosis.svg"
CAUSES_PAGE = ROOT / "docs" / "causes.md"
WITH_PARTS = (
    ROOT / "README.md",
    ROOT / "docs" / "architecture.md",
    ROOT / "docs" / "trace-format.md",
    ROOT / "docs" / "exports.md",
    ROOT / "docs" / "support.md",
)
_PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def cell(text: object) -> str:
    """Text as it may stand in a cell of a Markdown table."""
    return str(text).replace("\n", " ").replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines]) + "\n"


def settings() -> str:
    """The variables, their values and defaults."""
    default = Settings()
    rows: list[tuple[str, ...]] = [("`EAGLETRACE`", "1, or 0 for off", "off", "switches tracing on")]
    for variable in VARIABLES:
        value = getattr(default, variable.field)
        shown = {None: "none", False: "off"}.get(value, value)
        rows.append((f"`{variable.name}`", variable.allowed, str(shown), variable.doc))
    return table(("variable", "values", "default", "what it does"), rows)


class _Listing:
    """Stands in for argparse's list of commands, and keeps what each command registers."""

    def __init__(self) -> None:
        self.found: list[tuple[str, argparse.ArgumentParser]] = []

    def add_parser(self, name: str, **values: Any) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"eagletrace {name}", formatter_class=_OneLine,
                                         **{"description": values.pop("help"), **values})  # fmt: skip
        self.found.append((name, parser))
        return parser


class _OneLine(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=1000)


def command_parsers() -> list[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser."""
    listing: Any = _Listing()
    for command in COMMANDS:
        if command is lab:
            lab.add_parser(listing, load=False)
        else:
            command.add_parser(listing)
    return listing.found


def commands() -> str:
    """The commands: usage, what they do, exit status."""
    rows: list[tuple[str, str]] = []
    for name, parser in command_parsers():
        usage = " ".join(parser.format_usage().removeprefix("usage: ").replace("[-h] ", "").replace("[-h]", "").split())
        usage = "eagletrace lab build\\|faults\\|run\\|serve\\|matrix" if name == "lab" else usage.replace("|", "\\|")
        does = " ".join(filter(None, (parser.description, parser.epilog)))
        rows.append((f"`{usage}`", does))
    body = "\n".join(f"| {usage} | {cell(does)} |" for usage, does in rows)
    return f"| command | what it does |\n| --- | --- |\n{body}\n"


def causes() -> str:
    """The causes: what they are, and whether this release can name them."""
    return table(
        ("cause", "what is wrong", "named by `diagnose`"),
        ((f"[`{c.id}`](docs/causes.md#{anchor(c.id)})", c.title, "no" if c.needs else "yes") for c in CAUSES.values()),
    )


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")


def tables() -> str:
    """The tables of a run."""
    return table(
        ("table", "a row is", "columns"),
        ((f"[`{t.name}`](docs/trace-format.md#{t.name})", t.doc, ", ".join(f"`{c.name}`" for c in t.columns))
         for t in TABLES.values()),
    )  # fmt: skip


def _columns(of: Iterable[Column]) -> str:
    return table(("column", "type", "unit", "meaning"), ((f"`{c.name}`", c.type, c.unit, c.doc) for c in of))


def columns() -> str:
    """Every column of every table."""
    parts = ["In every table:\n\n" + _columns(PROCESS_COLUMNS)]
    for t in TABLES.values():
        kinds = [k for k, on in (("detail: sampled, and may be given up for space", t.detail),
                                 ("recorded by every tensor-parallel rank", t.per_rank)) if on]  # fmt: skip
        note = f" ({'; '.join(kinds)})" if kinds else ""
        parts.append(f"### {t.name}\n\n{t.doc}{note}\n\n{_columns(t.columns)}")
    return "\n".join(parts)


def named(values: dict[str, str], head: str) -> str:
    """Names and meanings."""
    return table((head, "meaning"), ((f"`{k}`", v) for k, v in values.items()))


def span_attributes() -> str:
    """Attributes of spans and of their resource."""
    return table(
        ("attribute", "type", "on", "from", "meaning"),
        ((f"`{a.name}`", a.type, a.on, a.convention, a.doc) for a in ATTRIBUTES.values()),
    )


def metrics() -> str:
    """Prometheus metrics."""
    return table(
        ("metric", "type", "labels", "meaning"),
        ((f"`{PREFIX}{m.name}`", m.type, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in METRICS),
    )


def queries() -> str:
    """The bundled queries."""
    return table(
        ("query", "answers", "parameters"),
        ((f"`{f.name}`", f.title, ", ".join(f"`{p.name}={p.default}`" for p in f.params.values()))
         for f in load_folder("explore").values()),
    )  # fmt: skip


def targets() -> str:
    """What is hooked in SGLang."""

    def required(target: Target) -> str:
        return "no" if not target.required else " or ".join(("yes", *target.alternatives))

    return table(
        ("target", "where", "required", "what it shows; which releases have it"),
        ((t.name, f"`{t.path}`", required(t), t.doc) for t in BY_NAME.values()),
    )


def support_table() -> str:
    """What is traced, diagnosed and replayed."""
    return table(("target", "draft", "SGLang", "drafts", *support.COLUMNS), support.cells())


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "causes": causes,
    "tables": tables,
    "columns": columns,
    "contract-keys": lambda: named(CONTRACT_KEYS, "key"),
    "event-kinds": lambda: named(EVENT_KINDS, "kind"),
    "span-attributes": span_attributes,
    "metrics": metrics,
    "queries": queries,
    "targets": targets,
    "support": support_table,
}


def fill(text: str) -> str:
    """The text with its generated parts made anew; KeyError for a part that nothing makes."""
    return _PART.sub(lambda m: f"{m[1]}{PARTS[m['name']]()}{m[4]}", text)


def causes_page() -> str:
    """docs/causes.md."""
    checks = [c for c in load_checks().values() if c.causes]
    by_cause = {cause: [c for c in checks if cause in c.causes] for cause in CAUSES}
    pages = "\n".join(_cause(cause, [c.id for c in by_cause[cause.id]]) for cause in CAUSES.values())
    rows = ((f"`{c.id}`", c.file.title, c.severity, c.certainty, ", ".join(f"`{i}`" for i in c.causes))
            for c in load_checks().values())  # fmt: skip
    head = ("check", "holds when", "severity", "certainty", "bears on")
    return f"{_CAUSES_HEAD}\n{pages}\n{_CHECKS_HEAD}\n{table(head, rows)}"


_CAUSES_HEAD = """# Causes

Generated by `make docs` from `eagletrace/diagnose/causes/` and `queries/checks/`; `eagletrace explain CAUSE` prints
the same. `{draft}` and `{target}` become the paths that were served. Of two explanations the more upstream one is the
cause: configuration, then capture, then wiring, then effect.
"""
_CHECKS_HEAD = """## Checks

Each is one file of `queries/checks/`. *sure*: such a fact costs acceptance or kills the engine; *possible*: it often
costs nothing, and is a cause only where acceptance is lost; *symptom*: something is wrong, not what; *harmless*: worth
knowing, never a cause.
"""


def _cause(cause: CauseInfo, checks: Sequence[str]) -> str:
    lines = [
        f"## {cause.id}",
        "",
        f"**{cause.title}.** {cause.what}",
        "",
        f"- Stage: {cause.stage}",
        f"- Why it costs acceptance: {cause.why}",
        f"- What shows it: {cause.shows}",
        f"- Fix: {cause.fix}",
    ]
    if cause.cases:
        lines.append(f"- Public cases: {', '.join(cause.cases)}")
    if cause.needs:
        lines.append(f"- Not named by this release; it needs: {cause.needs}")
    elif checks:
        lines.append(f"- Checks: {', '.join(f'`{c}`' for c in checks)}")
    if cause.untested:
        lines.append(f"- Tested on traces written for the test, not in the lab: {cause.untested}")
    return "\n".join([*lines, ""])


def picture() -> str | None:
    """docs/diagnosis.svg: the diagnosis of the recorded run that ships with the package."""
    if not DEMO_RUN.exists():
        return None
    with open_run(DEMO_RUN) as run:
        return diagnosis_svg(diagnose(run))


def generated() -> dict[Path, str]:
    """What every generated file should hold now."""
    files = {path: fill(path.read_text(encoding="utf-8")) for path in WITH_PARTS}
    files[CAUSES_PAGE] = causes_page()
    svg = picture()
    return files if svg is None else {**files, PICTURE: svg}


def stale() -> list[Path]:
    """Files that differ from what they should hold."""
    return [p for p, text in generated().items() if not p.exists() or p.read_text(encoding="utf-8") != text]


def main(argv: Sequence[str] | None = None) -> int:
    """Write what is stale, or with `--check` only say so."""
    check = "--check" in (sys.argv[1:] if argv is None else argv)
    paths = stale()
    texts = generated()
    for path in paths:
        print(f"{'stale' if check else 'wrote'} {path.relative_to(ROOT)}")
        if not check:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and paths else 0


if __name__ == "__main__":
    sys.exit(main())
