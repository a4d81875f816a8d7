"""`eagletrace lab build|faults|run|serve|matrix`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagletrace.errors import EagletraceError
from eagletrace.lab.engines import DEFAULT_ENGINE, ENGINES
from eagletrace.lab.faults import CASES, Case
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.pair import PAIRS
from eagletrace.settings import LEVELS

HELP = "serve a tiny trained pair on SGLang's own engine on the CPU, healthy or with a fault"
DEFAULT_ROUNDS = 400
WORKERS = sorted({worker for engine in ENGINES.values() for worker in engine.workers})


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add `lab` and its commands; each sets `handler`, which takes the namespace and returns the exit status."""
    lab = subparsers.add_parser("lab", help=HELP, description=HELP)
    commands = lab.add_subparsers(dest="lab_command", required=True)
    _build(commands.add_parser("build", help="train the pair again"))
    _faults(commands.add_parser("faults", help="list the catalogue of faults and controls"))
    _run(commands.add_parser("run", help="serve, send requests, record a run"))
    _serve(commands.add_parser("serve", help="serve until a signal"))
    _matrix(commands.add_parser("matrix", help="serve and diagnose the whole catalogue"))


def _json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, messages on stderr")


def _seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and the engine (default: %(default)s)")


def _build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("lab-pair"), help="folder to write (default: %(default)s)")
    parser.add_argument("--pair", choices=PAIRS, default=PAIRS[0], help="which target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (default: %(default)s)")
    parser.add_argument("--size", choices=("full", "small"), default="full", help="small: minutes less, for tests")
    _json_flag(parser)
    parser.set_defaults(handler=build)


def _faults(parser: argparse.ArgumentParser) -> None:
    _json_flag(parser)
    parser.set_defaults(handler=faults)


def _serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fault", metavar="NAME", help="a case of `eagletrace lab faults`")
    parser.add_argument("--pair", choices=PAIRS, help="a pair that ships (default: the case's, else llama)")
    parser.add_argument(
        "--pair-dir", type=Path, metavar="DIR", help="another pair, as `eagletrace lab build` writes it"
    )
    parser.add_argument("--draft", type=Path, metavar="PATH", help="a draft of your own")
    parser.add_argument("--target", type=Path, metavar="PATH", help="a target of your own")
    parser.add_argument("--engine", metavar="VERSION", help=f"{' or '.join(ENGINES)} (default: {DEFAULT_ENGINE})")
    parser.add_argument("--worker", choices=WORKERS, help="speculative worker (default: the engine's own)")
    where = "where runs are recorded (default: EAGLETRACE_DIR or ./eagletrace-runs)"
    parser.add_argument("--dir", type=Path, metavar="D", help=where)
    parser.add_argument("--level", choices=LEVELS, help="EAGLETRACE_LEVEL of the server")
    _seed(parser)
    parser.add_argument("--topk", type=_positive, default=1, metavar="K", help="branches; 1 is a chain (default: 1)")
    parser.add_argument("--steps", type=_positive, default=3, metavar="S", help="draft steps (default: %(default)s)")
    parser.add_argument("--draft-tokens", type=_positive, metavar="D", help="nodes of the verify tree, root included")
    parser.add_argument("--tp", type=_positive, default=1, metavar="N", help="tensor-parallel ranks (default: 1)")
    parser.add_argument("--dp", type=_positive, default=1, metavar="N", help="data-parallel ranks (default: 1)")


def _run(parser: argparse.ArgumentParser) -> None:
    _serve_options(parser)
    parser.add_argument("--rounds", type=_positive, default=DEFAULT_ROUNDS, help="verify rounds (default: %(default)s)")
    _json_flag(parser)
    parser.set_defaults(handler=run)


def _serve(parser: argparse.ArgumentParser) -> None:
    _serve_options(parser)
    parser.add_argument("--port", type=_positive, help="default: a free one")
    parser.set_defaults(handler=serve)


def _matrix(parser: argparse.ArgumentParser) -> None:
    rounds = "verify rounds; with several, each case is judged after each (default: %(default)s)"
    parser.add_argument("--rounds", type=_positive, nargs="+", default=[DEFAULT_ROUNDS], metavar="N", help=rounds)
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help="cases served at once (default: 1)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these cases only")
    parser.add_argument("--pair", choices=PAIRS, help="the cases of this pair only")
    parser.add_argument(
        "--pair-dir", type=Path, metavar="DIR", help="another pair, as `eagletrace lab build` writes it"
    )
    parser.add_argument("--dir", type=Path, metavar="D", help="where runs are recorded (default: ./lab-runs)")
    parser.add_argument("--level", choices=LEVELS, help="EAGLETRACE_LEVEL of the servers")
    _seed(parser)
    parser.add_argument("--resume", action="store_true", help="do not serve again what an earlier one left in --dir")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page with the table there too")
    _json_flag(parser)
    parser.set_defaults(handler=matrix)


def build(arguments: argparse.Namespace) -> int:
    """`lab build`: train a pair into a folder."""
    from eagletrace.lab.pair import build_pair

    folder = build_pair(arguments.out, arguments.seed, arguments.size, _say, pair=arguments.pair)
    if arguments.json:
        _print({"schema_version": 1, "pair": str(folder)})
    else:
        print(f"wrote {folder}; serve it with `eagletrace lab run --pair {arguments.pair} --pair-dir {folder}`")
    return 0


def faults(arguments: argparse.Namespace) -> int:
    """`lab faults`: the catalogue."""
    if arguments.json:
        _print({"schema_version": 1, "faults": [entry.public() for entry in CASES.values()]})
        return 0
    from eagletrace.report.tables import print_rows

    print_rows([_listed(entry) for entry in CASES.values()])
    print("\nserve one: eagletrace lab run --fault NAME")
    return 0


def _listed(entry: Case) -> dict[str, str]:
    """A case as a row of the list."""
    return {
        "name": entry.name, "kind": entry.kind, "pair": entry.pair, "engine": f"{entry.engine} {entry.worker}",
        "expected": " or ".join(entry.expected) or "healthy", "what it is": entry.title,
    }  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """`lab run`: serve, send requests, record."""
    from eagletrace.lab.load import LoadOptions
    from eagletrace.lab.run import lab_run
    from eagletrace.lab.server import exit_on_signals

    exit_on_signals()
    result = lab_run(_options(arguments), LoadOptions(rounds=arguments.rounds))
    if result.engine_died:
        _say(f"the engine died: {result.reason}")
    if result.run is None:
        _say("no run was recorded: `eagletrace doctor` in that environment says what shuts tracing out")
    if arguments.json:
        _print(result.public())
        return 0
    length = "none" if result.accept_length is None else f"{result.accept_length:.2f}"
    print(f"accept length {length} over {result.rounds} rounds of {len(result.answers)} requests")
    if result.run is not None:
        print(f"next: eagletrace diagnose {result.run}")
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """`lab serve`: serve until a signal."""
    from eagletrace.lab.run import serve_until_signal
    from eagletrace.lab.server import exit_on_signals

    exit_on_signals()
    try:
        serve_until_signal(_options(arguments, tracing="inherit"), arguments.port)
    except (KeyboardInterrupt, SystemExit):
        _say("stopped")
    return 0


def matrix(arguments: argparse.Namespace) -> int:
    """`lab matrix`: every case served and diagnosed.

    Exit status 1 when one is wrong, or undecided after the largest number of rounds.
    """
    from eagletrace.lab import confusion
    from eagletrace.lab import matrix as matrices
    from eagletrace.lab.load import LoadOptions
    from eagletrace.lab.server import exit_on_signals

    exit_on_signals()
    options = ServeOptions(
        pair=arguments.pair,
        pair_dir=arguments.pair_dir,
        dir=arguments.dir or Path("lab-runs"),
        level=arguments.level,
        seed=arguments.seed,
    )
    rows = matrices.run_matrix(
        options,
        LoadOptions(),
        arguments.only,
        _say,
        rounds=arguments.rounds,
        jobs=arguments.jobs,
        resume=arguments.resume,
    )
    if arguments.markdown is not None:
        pair = f"the shipped pair `{arguments.pair}`" if arguments.pair else "one of the shipped pairs"
        pair = f"the pair in `{arguments.pair_dir}`" if arguments.pair_dir else pair
        arguments.markdown.write_text(confusion.page(rows, pair))
    if arguments.json:
        _print(confusion.to_json(rows))
    else:
        print(confusion.markdown(rows))
    most = max(row.rounds for row in rows)
    return 0 if all(row.right or (row.open and row.rounds < most) for row in rows) else 1


def _options(arguments: argparse.Namespace, **more: Any) -> ServeOptions:
    return ServeOptions(
        fault=arguments.fault,
        pair=arguments.pair,
        pair_dir=arguments.pair_dir,
        draft=arguments.draft,
        target=arguments.target,
        engine=arguments.engine,
        worker=arguments.worker,
        topk=arguments.topk,
        steps=arguments.steps,
        draft_tokens=arguments.draft_tokens,
        tp=arguments.tp,
        dp=arguments.dp,
        dir=arguments.dir,
        level=arguments.level,
        seed=arguments.seed,
        **more,
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _print(body: dict[str, Any]) -> None:
    print(json.dumps(body, allow_nan=False))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m eagletrace.lab.cli …`: the lab's commands alone."""
    parser = argparse.ArgumentParser(prog="eagletrace")
    add_parser(parser.add_subparsers(required=True))
    given = parser.parse_args(arguments)
    try:
        return int(given.handler(given))
    except EagletraceError as error:
        _say(f"eagletrace: {error}")
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
