"""The command line of `cq`: its commands, arguments and options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

__all__ = ["COMMANDS", "DEFAULT_WAREHOUSE", "Namespace", "build_parser", "parse_arguments", "version"]

COMMANDS = ("prompt", "run", "exec", "example", "serve", "follow", "dequeue", "calibrate", "prepare")
DEFAULT_WAREHOUSE = "warehouse"

Namespace = argparse.Namespace


class _Help(argparse.HelpFormatter):
    """Leaves room for the names of commands, which argparse indents by two more than it counts."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 2 + 2 + max(map(len, COMMANDS))


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """The command line, whose warehouse is the last argument, also behind options (where argparse expects none)."""
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    if "warehouse" not in options or options.warehouse is not None:
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        return options
    words = [*(options.c[1:] if options.command == "exec" else []), *rest]
    if len(words) > 1 or (words[:1] and words[0].startswith("-")):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    if options.command == "exec":
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
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"cq {version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    prompt = commands.add_parser("prompt", help="type statements, or run those of a pipe (the default)")
    _add_warehouse(prompt)
    prompt.add_argument(
        "-c", metavar="SQL", action="append", help="run these statements and leave; may be repeated"
    )
    _add_connection(prompt)
    _add_display(prompt)
    prompt.set_defaults(command="prompt")

    run = commands.add_parser("run", help="run a script of statements")
    run.add_argument("script", metavar="SCRIPT", help="a .cql file; - is standard input")
    _add_warehouse(run, option=True)
    run.add_argument("--keep-going", action="store_true", help="go on after a statement that fails")
    run.add_argument("--echo", action="store_true", help="print every statement before what it gives")
    _add_connection(run)
    _add_display(run)
    run.set_defaults(command="run")

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
    execute.set_defaults(command="exec")

    example = commands.add_parser("example", help="list the examples, or run one")
    example.add_argument(
        "name", metavar="NAME", nargs="?", help="a number or a name; without one they are listed"
    )
    example.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="for the example")
    example.set_defaults(command="example")

    serve = commands.add_parser("serve", help="keep the queries of a warehouse running until Ctrl-C")
    serve.add_argument("warehouse", metavar="WAREHOUSE", help="the warehouse's directory or URI")
    serve.add_argument(
        "--health",
        metavar="HOST:PORT",
        help="answer GET /health and /ready there, with JSON and without accounts",
    )
    _add_connection(serve)
    serve.set_defaults(command="serve", read_only=False, duties=True)

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
    follow.set_defaults(command="follow", read_only=True, duties=None, timing=False, limit=0)

    _add_dequeue(commands)
    calibrate = commands.add_parser(
        "calibrate", help="measure what the parts of a mesh join cost on this machine"
    )
    calibrate.set_defaults(command="calibrate")
    prepare = commands.add_parser("prepare", help="store Spark's classes now, so that Spark starts quickly")
    prepare.set_defaults(command="prepare")
    return parser


def _add_dequeue(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dequeue = commands.add_parser(
        "dequeue", help="write the messages of a queue, and acknowledge what was written"
    )
    dequeue.add_argument("queue", metavar="QUEUE", help="a destination of type queue")
    _add_warehouse(dequeue, option=True)
    dequeue.add_argument(
        "--group",
        default="default",
        help="the group of consumers (default: %(default)s); each is given every message",
    )
    dequeue.add_argument("-n", dest="count", metavar="N", type=_count, help="so many messages at most")
    dequeue.add_argument("--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    dequeue.add_argument(
        "--wait", metavar="SECONDS", type=float, default=0.0, help="wait so long for messages"
    )
    dequeue.add_argument(
        "--no-ack",
        action="store_true",
        help="acknowledge nothing: messages come again after the visibility time-out",
    )
    dequeue.add_argument(
        "--format", choices=("table", "csv", "jsonl"), default="table", help="how messages are written"
    )
    _add_connection(dequeue)
    dequeue.set_defaults(command="dequeue", read_only=False, duties=False, timing=False, limit=0)


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
    where = parser.add_mutually_exclusive_group()
    for option, setting, text in (
        (
            "--master",
            "spark.master",
            "where Spark runs: local[*] (the default), spark://host:7077, yarn, k8s://…",
        ),
        (
            "--remote",
            "spark.remote",
            "a Spark Connect server, sc://host:15002, in the place of a Spark of cq's own",
        ),
    ):
        where.add_argument(
            option, metavar="URL", dest="conf", action="append", type=partial(_named, setting), help=text
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


def _named(setting: str, text: str) -> tuple[str, str]:
    return setting, text


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def version() -> str:
    """The version of cq-engine that is installed."""
    from importlib import metadata

    try:
        return metadata.version("cq-engine")
    except metadata.PackageNotFoundError:
        return "(not installed)"
