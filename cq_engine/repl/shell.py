"""What the prompt, a script and `cq exec` have in common: run statements on one engine and show what they give."""

from __future__ import annotations

import os
import pydoc
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO, cast

from cq_engine.core.calls import IMPATIENT, Interrupted, call
from cq_engine.core.errors import CQError, Location
from cq_engine.query.rendering import CELL_WIDTH, DEFAULT_LIMIT, render_result, row_count
from cq_engine.repl.background import POLL_SECONDS, Opening
from cq_engine.repl.ports import EngineLike
from cq_engine.repl.unexpected import log_unexpected, own_error

if TYPE_CHECKING:  # imports Spark
    from cq_engine.query.result import Result
    from cq_engine.query.stream import StreamingResult

__all__ = ["Leave", "Settings", "Shell", "render_duration"]

_SAY_AFTER_SECONDS = 1.0


class Leave(Exception):
    """The session is to end now, without waiting for a statement that does not react to Ctrl-C."""


@dataclass
class Settings:
    """How results are shown. `expanded` is off, on, or auto (where a table is wider than the terminal).

    `limit` is the most rows of a result that are shown, 0 for all of them, None for what suits the output: a table at
    a terminal shows the first of them, everything else is whole.
    """

    timing: bool = False
    expanded: str = "off"
    limit: int | None = None
    echo: bool = False
    format: str = "table"
    restricted: bool = False
    """\\i reads no files: what is typed comes from others."""


@dataclass(frozen=True)
class _Shown:
    """What one statement gave: text, remarks that are no rows, and whether a text that is long is paged."""

    text: str
    note: str = ""
    paged: bool = False
    seconds: float = 0.0


class Shell:
    """Runs statements and commands one after another and writes results to `out`, errors to `err`.

    `warehouse` is where it logs what nobody expected. Nothing that a statement raises leaves a method of this class,
    but `Leave`.
    """

    def __init__(
        self,
        opening: Opening,
        warehouse: str,
        settings: Settings | None = None,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.opening = opening
        self.warehouse = warehouse
        self.settings = Settings() if settings is None else settings
        self.failures = 0
        """How many statements and commands have failed."""
        self.cancelled = False
        """True once Ctrl-C has ended a statement; the prompt takes it back with the next entry."""
        self._out = out
        self._err = err
        self._streaming = False

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""
        engine = self.opening.current
        return engine is not None and engine.in_transaction

    # ------------------------------------------------------------ running

    def run_text(self, text: str, source: str, *, first_line: int = 1, keep_going: bool = False) -> bool:
        """Runs the statements of a text, in order, up to the first that fails.

        Args:
            source: what errors name as the place, a file name or `<input>`.
            first_line: the line of `source` in which `text` begins.
            keep_going: goes on after a statement that fails.

        Returns:
            True if every statement succeeded.
        """
        from cq_engine.grammar import split

        try:
            items = split(text, source)
        except CQError as error:
            return self._count_failure(_move_place(error, first_line - 1))
        good = True
        for item in items:
            if not self._run_statement(item.text, source, item.line + first_line - 1, item.column):
                good = False
                if self.cancelled or not keep_going:
                    break
        return good

    def run_file(self, path: str, *, keep_going: bool = False) -> bool:
        """Runs the statements of a file; `-` is standard input."""
        try:
            text = sys.stdin.read() if path == "-" else Path(path).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            return self._count_failure(CQError(f"cannot read {path}", detail=error.strerror or str(error)))
        except UnicodeDecodeError as error:
            return self._count_failure(
                CQError(f"cannot read {path}", detail=f"it is not UTF-8 text: {error.reason}")
            )
        return self.run_text(text, "<stdin>" if path == "-" else path, keep_going=keep_going)

    def call(self, work: Callable[[EngineLike], str]) -> bool:
        """Runs `work` on the engine as a statement is run, and writes the text it returns."""

        return self._guard(lambda: _Shown(work(self.opening.engine())))

    def stream(self, rows: Callable[[EngineLike], Result]) -> bool:
        """Writes rows as they come, until Ctrl-C or their end."""
        return self._guard(lambda: self._stream(rows(self.opening.engine())))

    def drain(self) -> bool:
        """Waits until every ON COMMIT query and every destination has the newest commit."""

        def drained(engine: EngineLike) -> str:
            engine.drain()
            return ""

        return self.call(drained)

    def end_transaction(self) -> bool:
        """Rolls back a transaction that was left open; True if there was one."""
        if not self.in_transaction:
            return False
        self._run_statement("ROLLBACK", "<end>", 1, 1, silent=True)
        return True

    def close(self) -> None:
        """Closes the engine; errors of it are shown."""

        def closed() -> _Shown:
            if self.opening.error is None:
                self.opening.close()
            return _Shown("")

        self._guard(closed)

    # ------------------------------------------------------------ writing

    def write(self, text: str) -> None:
        """Writes a line or more for a person."""
        if text:
            _write(self._out or sys.stdout, text)

    def complain(self, error: CQError) -> None:
        """Writes an error and counts it."""
        self._count_failure(error)

    def note(self, text: str) -> None:
        """Writes a remark that is no result."""
        _write(self._err or sys.stderr, text)

    # ------------------------------------------------------------ inside

    def _run_statement(self, sql: str, source: str, line: int, column: int, *, silent: bool = False) -> bool:
        def executed() -> _Shown:
            engine = self.opening.engine()
            begin = time.monotonic()
            result = engine.execute(sql, source=source, line=line, column=column)
            if result.is_stream:
                return self._stream(result)
            shown = _Shown("") if silent else self._shown(result)
            return replace(shown, seconds=time.monotonic() - begin)

        if self.settings.echo and not silent:
            self.write(sql.rstrip().rstrip(";") + ";")
        first = " " * (column - 1) + sql.split("\n", 1)[0]
        place = None if source == "<input>" or silent else Location(source, line, column, first)
        return self._guard(executed, sql, place)

    @property
    def limit(self) -> int:
        """How many rows of a result are shown; 0: all."""
        if self.settings.limit is not None:
            return self.settings.limit
        return DEFAULT_LIMIT if self._at_terminal and self.settings.format == "table" else 0

    @property
    def _at_terminal(self) -> bool:
        return (self._out or sys.stdout).isatty()

    def _shown(self, result: Result) -> _Shown:
        """A result in the format that was asked for. Rows that Spark has still to compute are computed here."""
        settings = self.settings
        if settings.format == "table" or result.is_text:
            width = shutil.get_terminal_size().columns if settings.expanded == "auto" else 0
            cell = CELL_WIDTH if self._at_terminal else 0
            text = render_result(
                result, self.limit, expanded=settings.expanded == "on", width=width, cell=cell
            )
            if result.has_rows and not result.is_text:
                text += "\n"  # an empty line between a table and what follows it
            return _Shown(text, paged=result.whole)
        if not result.has_rows:
            return _Shown("", note=result.message or "OK")
        from cq_engine.query.formats import WRITERS

        table, more = result.head(self.limit)
        note = row_count(table.num_rows, more) if more else ""
        return _Shown(WRITERS[settings.format](table), note="\n".join(filter(None, (note, result.message))))

    def _stream(self, result: Result) -> _Shown:
        """Writes a result that does not end until Ctrl-C, which ends nothing else."""
        from cq_engine.repl.streams import write_stream

        self._streaming = True
        cell = CELL_WIDTH if self._at_terminal else 0
        write_stream(cast("StreamingResult", result), self.settings.format, self.write, cell)
        return _Shown("")

    def _guard(self, run: Callable[[], _Shown], sql: str = "", place: Location | None = None) -> bool:
        """Runs one thing and shows what it gives; shows and counts whatever goes wrong with it, at `place` unless the
        error knows better."""
        done = False
        try:
            with self._telling(), self._listening(), call():
                shown = run()
            done = True
            self._show(shown)
        except (Leave, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            if self._streaming:
                return True
            self.cancelled = True
            said = str(error) if isinstance(error, Interrupted) else "cancelled"
            return self._count_failure(CQError("interrupted while the result was shown" if done else said))
        except BaseException as error:  # noqa: BLE001 - the prompt outlives every statement
            found = own_error(error) or log_unexpected(error, self.warehouse, sql)
            found.location = found.location or place
            return self._count_failure(found)
        finally:
            self._streaming = False
        return True

    def _show(self, shown: _Shown) -> None:
        if shown.paged and self._at_terminal and shown.text.count("\n") >= shutil.get_terminal_size().lines:
            _page(shown.text)
        else:
            self.write(shown.text)
        if shown.note:
            self.note(shown.note)
        if self.settings.timing and (shown.text or shown.note):
            (self.write if self.settings.format == "table" else self.note)(render_duration(shown.seconds))

    def _count_failure(self, error: CQError) -> bool:
        self.failures += 1
        self.note(error.render())
        return False

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Counts the Ctrl-Cs of a statement: the second one gets an answer, the last one leaves."""
        presses = 0

        def pressed(_number: int, _frame: FrameType | None) -> None:
            nonlocal presses
            presses += 1
            if presses >= IMPATIENT:
                raise Leave
            if presses > 1:
                with suppress(RuntimeError):  # it came in the middle of writing
                    self.note("still cancelling; Ctrl-C once more leaves without waiting")
            raise Interrupted

        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):  # it is ignored
            yield
            return
        signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Says, at a terminal, what a statement waits for, once it has waited for a while."""
        over = threading.Event()

        def tell() -> None:
            since, told = time.monotonic(), ""
            while not over.wait(POLL_SECONDS):
                under_way = self.opening.under_way
                if not under_way:
                    return
                if under_way != told and time.monotonic() - since >= _SAY_AFTER_SECONDS:
                    told = under_way
                    self.note(f"({under_way})")

        if not self.opening.under_way or not (self._err or sys.stderr).isatty():
            yield
            return
        teller = threading.Thread(target=tell, name="cq-tell", daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()


def render_duration(seconds: float) -> str:
    """How long a statement took, as `\\timing` prints it.

    >>> render_duration(0.0123), render_duration(75.5)
    ('Time: 12.3 ms', 'Time: 75.50 s')
    """
    return f"Time: {seconds * 1000:.1f} ms" if seconds < 1 else f"Time: {seconds:.2f} s"


def _page(text: str) -> None:
    """Shows a text that is longer than the terminal in the pager of the system, `$PAGER` or less."""
    os.environ.setdefault("LESS", "FRX")
    pydoc.pager(text)


def _move_place(error: CQError, lines: int) -> CQError:
    """The error with its place `lines` further down."""
    if error.location is not None:
        error.location = replace(error.location, line=error.location.line + lines)
    return error


def _write(stream: TextIO, text: str) -> None:
    # What the other stream holds was written earlier and belongs before this.
    for other in (sys.stdout, sys.stderr):
        if other is not stream:
            other.flush()
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
