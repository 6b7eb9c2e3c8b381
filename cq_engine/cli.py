"""The command `cq`.

    cq [WAREHOUSE]        a prompt (default ./warehouse, made if it is not there); `cq prompt` is the same
    cq -c SQL [WAREHOUSE] runs statements and leaves; `cq exec SQL [WAREHOUSE]` is the same
    cq run SCRIPT.cql     runs a script, waits for its queries, stops at the first error; a warehouse may follow
    cq example [NAME]     lists or runs the examples of a checkout
    cq serve WAREHOUSE    keeps the queries of a warehouse running
    cq follow QUERY       writes what changes in a query's result as it comes, until Ctrl-C; a warehouse may follow
    cq dequeue QUEUE      writes the messages of a queue and acknowledges them; a warehouse may follow
    cq calibrate          measures what the parts of a mesh join cost on this machine
    cq prepare            stores Spark's classes, so that Spark starts quickly

Exit codes: 0, 1 where something failed, 2 for a wrong command line, 130 after Ctrl-C.
Spark and the prompt's library are imported where they are needed, so that help comes at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from cq_engine.core.errors import CQError
from cq_engine.core.options import RESTRICTED
from cq_engine.launch import prestart
from cq_engine.repl.arguments import COMMANDS, DEFAULT_WAREHOUSE, Namespace, parse_arguments, version

if TYPE_CHECKING:
    from cq_engine.repl.ports import EngineLike
    from cq_engine.repl.shell import Shell

__all__ = ["main"]

_INTERRUPTED = 130
_SERVE_POLL_SECONDS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `cq` with these arguments (without the program's name) and gives its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A bare `cq`, a warehouse and the prompt's options are all the prompt.
    if not arguments or arguments[0] not in {*COMMANDS, "-h", "--help", "--version"}:
        arguments.insert(0, "prompt")
    try:
        options = parse_arguments(arguments)
    except SystemExit as leaving:  # argparse has written its message
        return leaving.code if isinstance(leaving.code, int) else 2
    if not sys.warnoptions:
        # What libraries tell their programmers would break into what a person reads; python -W shows it.
        warnings.simplefilter("ignore")
    try:
        code = _RUN[options.command](options)
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
        from cq_engine.repl.unexpected import log_unexpected

        _complain(log_unexpected(error, getattr(options, "warehouse", None) or DEFAULT_WAREHOUSE))
        return 1


# ---------------------------------------------------------------- commands


def _prompt(options: Namespace) -> int:
    if options.c:
        return _execute(options)
    from cq_engine.repl.app import run_pipe, run_prompt, stdin_is_terminal

    typed = stdin_is_terminal()
    shell = _shell(options, start_spark=True, hold=typed, tell=_say if typed else None)
    if typed:
        shell.settings.expanded = "auto"
        return run_prompt(shell, greeting=f"cq {version()}, warehouse {options.warehouse}; \\? for help")
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
    from cq_engine.repl.health import Health, answering
    from cq_engine.repl.serve import Stop, serve

    stop, health = Stop(), Health()

    def stop_serving(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, stop_serving) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.ExitStack() as opened:
            if options.health is not None:
                opened.enter_context(answering(options.health, health))
            engine = _connect(options, _say)
            opened.callback(engine.close)
            _say(f"serving {options.warehouse}; Ctrl-C stops")
            serve(engine, stop, _say, seconds=_SERVE_POLL_SECONDS, note=health.note)
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


def _dequeue(options: Namespace) -> int:
    from cq_engine.catalog.storage.location import directory_of

    place = directory_of(options.warehouse)
    if not options.catalog and place is not None and not place.exists():
        raise CQError(f"there is no warehouse at {options.warehouse}")
    shell = _shell(options, start_spark=False)
    wait = None if options.follow else options.wait
    return _run_unattended(
        shell,
        options,
        lambda: shell.stream(
            lambda engine: engine.consume_rows(
                options.queue, options.group, options.count, wait=wait, keep=options.no_ack
            )
        ),
        drain=False,
    )


def _prepare(_options: Namespace) -> int:
    from cq_engine.launch.prepare import make

    _say(f"Spark's classes are in {make()}")
    return 0


def _calibrate(_options: Namespace) -> int:
    from cq_engine.mesh.calibration import calibrate

    factors, path = calibrate()
    for name, value in vars(factors).items():
        _say(f"{name:10} {value:.3g} s")
    _say(f"kept in {path}")
    return 0


# ---------------------------------------------------------------- the engine


def _connect(options: Namespace, tell: Callable[[str], None] | None = None) -> EngineLike:
    """The engine; `tell` is told where the duties of the warehouse are, when that is not here, or changes."""
    prestart.import_spark()  # which the thread that starts Spark is importing, too
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
    start_spark = start_spark and not any(name == "spark.remote" for name, _ in options.conf)
    begin_spark = (lambda: prestart.start_spark(options.conf)) if start_spark else None
    opening = Opening(
        lambda: _connect(options, tell), start_spark=start_spark, prestart=begin_spark, hold=hold
    )
    restricted = any(n.lower() == RESTRICTED and v.lower() == "on" for n, v in options.conf)
    settings = Settings(
        timing=options.timing, limit=options.limit, format=options.format, restricted=restricted
    )
    return Shell(opening, options.warehouse, settings)


def _run_unattended(shell: Shell, options: Namespace, run: Callable[[], bool], *, drain: bool = True) -> int:
    """Runs statements without a person, waits for the queries that they moved, and gives the exit code."""
    from cq_engine.repl.app import finish_script
    from cq_engine.repl.shell import Leave

    try:
        run()
        return finish_script(shell, drain=drain and not options.read_only)
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


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _complain(error: CQError) -> None:
    sys.stdout.flush()
    sys.stderr.write(error.render() + "\n")


_RUN: dict[str, Callable[[Namespace], int]] = {
    "prompt": _prompt, "run": _run, "exec": _execute, "example": _example, "serve": _serve, "follow": _follow,
    "dequeue": _dequeue, "calibrate": _calibrate, "prepare": _prepare,
}  # fmt: skip
