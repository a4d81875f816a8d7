"""`eagletrace queries`: the bundled queries, or one of them with its SQL."""

from __future__ import annotations

import argparse
from typing import Any

from eagletrace.cli.output import print_json
from eagletrace.cli.parsers import Subparsers
from eagletrace.errors import UnknownNameError


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "queries",
        help="list the bundled queries",
        description="List the bundled queries; with NAME show one with its parameters and SQL.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this query")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=queries)


def queries(options: argparse.Namespace) -> int:
    """List the bundled queries, or show one."""
    from eagletrace.report.tables import print_rows
    from eagletrace.store.sqlfile import load_folder

    files = load_folder("explore")
    if options.name is not None and options.name not in files:
        raise UnknownNameError("query", options.name, files)
    rows: list[dict[str, Any]] = [
        {
            "name": f.name,
            "title": f.title,
            "needs": f.words("needs"),
            "params": {p.name: {"type": p.type, "default": p.default, "doc": p.doc} for p in f.params.values()},
        }
        for f in files.values()
        if options.name in (None, f.name)
    ]
    if options.json:
        print_json({"queries": [{**r, **({"sql": files[r["name"]].sql} if options.name else {})} for r in rows]})
    elif options.name:
        file = files[options.name]
        print(f"{file.name}: {file.title}\nneeds: {', '.join(file.words('needs'))}")
        for text in (*file.meta.get("about", "").splitlines(), *(f"{k}: {v}" for k, v in file.columns.items())):
            print(text)
        for param in file.params.values():
            print(f"--param {param.name}={param.default}: {param.doc}")
        print(f"\n{file.sql}")
    else:
        print_rows(
            [
                {
                    "name": r["name"],
                    "title": r["title"],
                    "needs": ", ".join(r["needs"]),
                    "parameters": ", ".join(r["params"]),
                }
                for r in rows
            ]
        )
    return 0
