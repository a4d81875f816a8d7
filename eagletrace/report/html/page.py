"""The page: one HTML file that needs no network, with a policy that lets nothing run but its own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

import eagletrace
from eagletrace.diagnose.causes import CAUSES
from eagletrace.report.diff import explained, lengths
from eagletrace.report.html import figures, repeat
from eagletrace.report.html.gather import RunReport, value_of
from eagletrace.report.html.repeat import Origin
from eagletrace.report.page import link
from eagletrace.report.terminal import VERDICTS, proved
from eagletrace.report.text import cell, safe

if TYPE_CHECKING:
    from eagletrace.diff.result import Diff

HERE = Path(__file__).resolve().parent
SCRIPTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js", "report.js")
LICENCES = ("vendor/LICENSE-plot", "vendor/LICENSE-d3")
LONG = 120  # characters of a value that is folded
MAX_VALUE = 20_000  # characters of a value that is shown at all
MAX_EVIDENCE_ROWS = 20
PLOT_STYLE = """:where(.plot-d6a7b5) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot-d6a7b5 text),
:where(.plot-d6a7b5 tspan) {
  white-space: pre;
}"""
"""The one style that Observable Plot puts into each of its charts; the policy allows this very text."""


@dataclass(frozen=True)
class Shown:
    """One run on the page: `prefix` keeps the ids of several runs apart, `name` is its heading (empty for one run)."""

    report: RunReport
    origin: Origin
    prefix: str = ""
    name: str = ""

    @property
    def figures(self) -> dict[str, figures.Figure]:
        """Its charts."""
        return figures.figures(self.report)


def render(runs: Sequence[Shown], diff: Diff | None = None) -> str:
    """The whole page; with `diff`, what differs between the first run and the second stands first."""
    sheets = [(HERE / "assets" / "report.css").read_text(encoding="utf-8"), PLOT_STYLE]
    scripts = [_asset(name) for name in SCRIPTS]
    pages = [(run, run.figures) for run in runs]
    compared = {} if diff is None else figures.compared(*(run.report.diagnosis.acceptance for run in runs))
    groups = [("diff-", compared), *((run.prefix, made) for run, made in pages)]
    drawn = {f"{prefix}{name}": {"kind": figure.kind, "data": figure.data}
             for prefix, made in groups for name, figure in made.items()}  # fmt: skip
    return _environment().get_template("page.html").render(
        runs=pages, diff=diff, compared=compared, policy=policy(scripts, sheets), sheet=Markup(sheets[0]),
        scripts=map(Markup, scripts),
        drawn=_json(drawn), version=eagletrace.__version__, licences=map(_asset, LICENCES),
    )  # fmt: skip


def policy(scripts: Sequence[str], sheets: Sequence[str]) -> str:
    """The Content-Security-Policy: these scripts and styles by their hashes, and nothing else from anywhere."""
    runs = " ".join(map(_hash, scripts))
    looks = " ".join(map(_hash, sheets))
    return f"default-src 'none'; script-src {runs}; style-src {looks}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return (HERE / "assets" / name).read_text(encoding="utf-8")


def _json(value: Any) -> Markup:
    """JSON that may stand in a script element: no text of it can end the element."""
    text = json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _plain(value: Any) -> Any:
    """The value with every text made safe to show."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    filters: dict[str, Any] = {
        "cell": _cell, "clock": figures.clock, "percent": figures.percent, "value": value_of, "pretty": _pretty,
        "case": link, "landed": _landed, "differing_first": _differing_first,
    }  # fmt: skip
    names: dict[str, Any] = {
        "verdicts": VERDICTS, "numbered": figures.numbered, "steps": repeat.steps, "differs": _differs,
        "causes": CAUSES, "server_arguments": repeat.server_arguments, "LONG": LONG,
        "MAX_EVIDENCE_ROWS": MAX_EVIDENCE_ROWS, "proved": proved,
        "lengths": lengths, "explained": explained,
    }  # fmt: skip
    environment.filters.update(filters)
    environment.globals.update(names)
    return environment


def _shown(value: Any) -> Any:
    """What a template prints: nothing for None, text without control characters; escaping comes after."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else safe(value)


def _cell(value: Any, limit: int = LONG) -> str:
    return cell(value, limit)


def _pretty(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} … ({len(text):,} characters)"


def _landed(text: str | None) -> str:
    """Where a checkpoint tensor landed, in words; the JSON as it is where it has another form."""
    value = value_of(text)
    try:
        return ", ".join(
            f"{part['parameter']}" + (f" from element {part['offset']}" if part["offset"] else "")
            for part in value or ()
        )
    except (TypeError, KeyError):
        return cell(value)


def _differing_first(facts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(facts, key=lambda fact: not _differs(fact))


def _differs(fact: Mapping[str, Any]) -> bool:
    """Whether the engine has something else than was expected; expectations of several parts are left to checks."""
    expected = value_of(fact["expected"])
    return expected is not None and not isinstance(expected, dict) and expected != value_of(fact["actual"])
