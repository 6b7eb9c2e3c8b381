"""The command `cq`.

    cq [WAREHOUSE]        a prompt (default ./warehouse, made if it is not there); `cq prompt` is the same
    cq -c SQL [WAREHOUSE] runs statements and leaves; `cq exec SQL [WAREHOUSE]` is the same
    cq run SCRIPT.cql     runs a script, waits for its queries, stops at the first error; a warehouse may follow
    cq example [NAME]     lists or runs the examples of a checkout
    cq serve WAREHOUSE    keeps the queries of a warehouse running
    cq follow QUERY       writes what changes in a query's result as it comes, until Ctrl-C; a warehouse may follow
    cq prepare            stores Spark's classes, so that Spark starts quickly

Exit codes: 0, 1 where something failed, 2 for a wrong command line, 130 after Ctrl-C.
Spark and the prompt's library are imported where they are needed, so that help comes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from cq_engine.core.errors import CQError
from cq_engine.core.options import RESTRICTED
from cq_engine.launch import prestart

if TYPE_CHECKING:
    from cq_engine.repl.ports import EngineLike
    from cq_engine.repl.shell import Shell

__all__ = ["build_parser", "main"]

DEFAULT_WAREHOUSE = "warehouse"

_INTERRUPTED = 130
_SERVE_POLL_SECONDS = 0.5

Namespace = argparse.Namespace


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `cq` with these arguments (without the program's name) and gives its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A bare `cq`, a warehouse and the prompt's options are all the prompt.
    if not arguments or arguments[0] not in {*_COMMANDS, "-h", "--help", "--version"}:
        arguments.insert(0, "prompt")
    try:
        options = _parse_arguments(build_parser(), arguments)
    except SystemExit as leaving:  # argparse has written its message
        return leaving.code if isinstance(leaving.code, int) else 2
    if not sys.warnoptions:
        # What libraries tell their programmers would break into what a person reads; python -W shows it.
        warnings.simplefilter("ignore")
    command: Callable[[Namespace], int] = options.command
    try:
        code = command(options)
        prestart.prepare_later()
        return code
    except CQError as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; nothing more can be written, not even at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - nobody is to read a traceback
        from cq_engine.repl.shell import log_unexpected

        _complain(log_unexpected(error, getattr(options, "warehouse", None) or DEFAULT_WAREHOUSE))
        return 1


def _parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """The command line, whose warehouse is the last argument, also behind options (where argparse expects none)."""
    options, rest = parser.parse_known_args(arguments)
    if "warehouse" not in options or options.warehouse is not None:
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        return options
    words = [*(options.c[1:] if options.command is _execute else []), *rest]
    if len(words) > 1 or (words[:1] and words[0].startswith("-")):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    if options.command is _execute:
        options.c = options.c[:1]
    options.warehouse = words[0] if words else DEFAULT_WAREHOUSE
    return options


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    parser = argparse.ArgumentParser(
        prog="cq",
        description="Continuous queries over Spark: SQL queries whose results stay up to date.",
        epilog="`cq [WAREHOUSE]` and `cq -c SQL [WAREHOUSE]` are short for `cq prompt ...`. A warehouse that is "
        "named like a command is written ./NAME.",
    )
    parser.add_argument("--version", action="version", version=f"cq {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    prompt = commands.add_parser("prompt", help="type statements, or run those of a pipe (the default)")
    _add_warehouse(prompt)
    prompt.add_argument(
        "-c", metavar="SQL", action="append", help="run these statements and leave; may be repeated"
    )
    _add_connection(prompt)
    _add_display(prompt)
    prompt.set_defaults(command=_prompt)

    run = commands.add_parser("run", help="run a script of statements")
    run.add_argument("script", metavar="SCRIPT", help="a .cql file; - is standard input")
    _add_warehouse(run, option=True)
    run.add_argument("--keep-going", action="store_true", help="go on after a statement that fails")
    run.add_argument("--echo", action="store_true", help="print every statement before what it gives")
    _add_connection(run)
    _add_display(run)
    run.set_defaults(command=_run)

    execute = commands.add_parser("exec", help="run the statements of the command line")
    execute.add_argument(
        "c",
        metavar=("SQL", "WAREHOUSE"),
        nargs="+",
        help="statements; the last of several arguments is the warehouse",
    )
    _add_warehouse(execute, positional=False, option=True)
    _add_connection(execute)
    _add_display(execute)
    execute.set_defaults(command=_execute)

    example = commands.add_parser("example", help="list the examples, or run one")
    example.add_argument(
        "name", metavar="NAME", nargs="?", help="a number or a name; without one they are listed"
    )
    example.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="for the example")
    example.set_defaults(command=_example)

    serve = commands.add_parser("serve", help="keep the queries of a warehouse running until Ctrl-C")
    serve.add_argument("warehouse", metavar="WAREHOUSE", help="the warehouse's directory or URI")
    _add_connection(serve)
    serve.set_defaults(command=_serve, read_only=False, duties=True)

    follow = commands.add_parser(
        "follow", help="write what changes in a query's result as it comes, until Ctrl-C"
    )
    follow.add_argument("query", metavar="QUERY", help="a continuous query, which another process refreshes")
    _add_warehouse(follow, option=True)
    begin = follow.add_mutually_exclusive_group()
    begin.add_argument("--snapshot", action="store_true", help="write the present result first")
    begin.add_argument(
        "--from-version", metavar="N", type=_count, help="begin with what comes after this version"
    )
    follow.add_argument(
        "--format", choices=("table", "csv", "jsonl"), default="table", help="how rows are written"
    )
    _add_connection(follow)
    follow.set_defaults(command=_follow, read_only=True, duties=None, timing=False, limit=0)

    prepare = commands.add_parser("prepare", help="store Spark's classes now, so that Spark starts quickly")
    prepare.set_defaults(command=_prepare)
    return parser


def _add_warehouse(parser: argparse.ArgumentParser, *, positional: bool = True, option: bool = False) -> None:
    """The warehouse as the last argument, or as `--warehouse`; None where it is not said."""
    text = f"the warehouse's directory or URI (default ./{DEFAULT_WAREHOUSE}); made if it is not there"
    if positional:
        # argparse would let the default of an argument that is missing overwrite the option.
        default = argparse.SUPPRESS if option else None
        parser.add_argument("warehouse", metavar="WAREHOUSE", nargs="?", default=default, help=text)
    if option:
        said = "the warehouse, said by name" if positional else f"{text}; every other argument is SQL then"
        parser.add_argument("--warehouse", metavar="DIR", default=None, help=said)


def _add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--catalog", metavar="URL", help="SQLAlchemy URL of the catalog (default: in the warehouse)"
    )
    parser.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_setting,
        help="an engine or Spark option",
    )


def _add_display(parser: argparse.ArgumentParser) -> None:
    from cq_engine.query.rendering import DEFAULT_LIMIT, FORMATS

    parser.add_argument("--read-only", action="store_true", help="only read")
    parser.add_argument(
        "--no-duties",
        dest="duties",
        action="store_const",
        const=False,
        help="leave refreshes, delivery and upkeep to other processes",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_count,
        help=f"rows shown of a result (default: {DEFAULT_LIMIT} of a table at a terminal, else all; 0: all)",
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="how rows are written")
    parser.add_argument("--timing", action="store_true", help="print how long statements take")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


# ---------------------------------------------------------------- commands


def _prompt(options: Namespace) -> int:
    if options.c:
        return _execute(options)
    from cq_engine.repl.app import run_pipe, run_prompt, stdin_is_terminal

    typed = stdin_is_terminal()
    shell = _shell(options, start_spark=True, hold=typed, tell=_say if typed else None)
    if typed:
        shell.settings.expanded = "auto"
        return run_prompt(shell, greeting=f"cq {_version()}, warehouse {options.warehouse}; \\? for help")
    return run_pipe(shell, sys.stdin, drain=not options.read_only)


def _run(options: Namespace) -> int:
    if options.script != "-" and not Path(options.script).exists():
        raise CQError(f"there is no script {options.script}")
    shell = _shell(options, start_spark=True)
    shell.settings.echo = options.echo
    return _run_unattended(
        shell, options, lambda: shell.run_file(options.script, keep_going=options.keep_going)
    )


def _execute(options: Namespace) -> int:
    shell = _shell(options, start_spark=any(map(prestart.needs_spark, options.c)))
    return _run_unattended(shell, options, lambda: all(shell.run_text(sql, "<command>") for sql in options.c))


def _example(options: Namespace) -> int:
    from cq_engine.repl import examples

    if options.name is None:
        for line in examples.listing():
            _say(line)
        return 0
    path = examples.find(options.name)
    if path.suffix == ".py":
        _say(examples.first_line(path))  # its libraries take their time
        return examples.run_program(path, options.arguments)
    if "--warehouse" in options.arguments:
        return main(["run", str(path), *options.arguments])
    with tempfile.TemporaryDirectory(prefix="cq-example-", ignore_cleanup_errors=True) as directory:
        return main(["run", str(path), directory, "--echo", *options.arguments])


def _serve(options: Namespace) -> int:
    from cq_engine.repl.serve import serve

    stop = threading.Event()

    def stop_serving(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, stop_serving) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        engine = _connect(options, _say)
        try:
            _say(f"serving {options.warehouse}; Ctrl-C stops")
            serve(engine, stop, _say, seconds=_SERVE_POLL_SECONDS)
        finally:
            engine.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _say("stopped")
    return 0


def _follow(options: Namespace) -> int:
    from cq_engine.grammar import Follow, StartFrom, format_statement

    start = StartFrom()
    if options.snapshot or options.from_version is not None:
        start = StartFrom("SNAPSHOT" if options.snapshot else "VERSION", options.from_version)
    statement = format_statement(Follow(options.query, start))
    shell = _shell(options, start_spark=options.snapshot)
    return _run_unattended(shell, options, lambda: shell.run_text(statement, "<command>"))


def _prepare(_options: Namespace) -> int:
    from cq_engine.launch.prepare import make

    _say(f"Spark's classes are in {make()}")
    return 0


# ---------------------------------------------------------------- the engine


def _connect(options: Namespace, tell: Callable[[str], None] | None = None) -> EngineLike:
    """The engine; `tell` is told where the duties of the warehouse are, when that is not here, or changes."""
    import cq_engine

    more = {} if options.duties is None else {"duties": options.duties}
    engine: EngineLike = cq_engine.connect(
        options.warehouse,
        catalog=options.catalog,
        conf=dict(options.conf),
        read_only=options.read_only,
        **more,
    )
    if tell is not None:
        engine.tell_of_duties(tell)
    return engine


def _shell(
    options: Namespace, *, start_spark: bool, hold: bool = False, tell: Callable[[str], None] | None = None
) -> Shell:
    """A shell on the engine that the options name, which opens while the caller goes on, or when the prompt stands."""
    from cq_engine.repl.background import Opening
    from cq_engine.repl.shell import Settings, Shell

    _check_warehouse(options.warehouse)
    begin_spark = (lambda: prestart.start_spark(options.conf)) if start_spark else None
    opening = Opening(
        lambda: _connect(options, tell), start_spark=start_spark, prestart=begin_spark, hold=hold
    )
    restricted = any(n.lower() == RESTRICTED and v.lower() == "on" for n, v in options.conf)
    settings = Settings(
        timing=options.timing, limit=options.limit, format=options.format, restricted=restricted
    )
    return Shell(opening, options.warehouse, settings)


def _run_unattended(shell: Shell, options: Namespace, run: Callable[[], bool]) -> int:
    """Runs statements without a person, waits for the queries that they moved, and gives the exit code."""
    from cq_engine.repl.app import finish_script
    from cq_engine.repl.shell import Leave

    try:
        run()
        return finish_script(shell, drain=not options.read_only)
    except Leave:
        return _INTERRUPTED


def _check_warehouse(warehouse: str) -> None:
    if Path(warehouse).is_file():
        raise CQError(
            f"{warehouse} is a file, and a warehouse is a directory", hint=f"cq run {warehouse} runs a script"
        )
    if " " in warehouse and not Path(warehouse).exists() and _is_statement(warehouse):
        raise CQError(
            f"{warehouse!r} is a statement, and stands where the warehouse's directory does",
            hint="separate statements by semicolons in one argument, or give each a -c of its own",
        )


def _is_statement(text: str) -> bool:
    from cq_engine.grammar import parse

    try:
        parse(text)
    except CQError:
        return False
    return True


# ---------------------------------------------------------------- words


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cq-engine")
    except PackageNotFoundError:
        return "(not installed)"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _complain(error: CQError) -> None:
    sys.stdout.flush()
    sys.stderr.write(error.render() + "\n")


_COMMANDS = ("prompt", "run", "exec", "example", "serve", "follow", "prepare")
