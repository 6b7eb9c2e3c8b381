"""The loop: reads statements from a terminal or a pipe and hands them to the shell."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cq_engine.core import private
from cq_engine.core.errors import CQError
from cq_engine.repl.commands import COMMANDS, run_command
from cq_engine.repl.shell import Leave, Shell
from cq_engine.repl.unexpected import state_directory

if TYPE_CHECKING:  # slow to import, and needed at a terminal only
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

__all__ = ["Reader", "is_entry_complete", "read_pipe", "run_pipe", "run_prompt"]

PROMPT = "cq> "
TRANSACTION_PROMPT = "cq*> "

_INTERRUPTED = 130
_LEAVING_WORDS = frozenset({"quit", "exit"})


class Reader(Protocol):
    """Gives one entry at a time: a command, or statements. EOFError ends the session."""

    def read(self, prompt: str) -> str: ...


def run_prompt(shell: Shell, reader: Reader | None = None, *, greeting: str = "") -> int:
    """The prompt at a terminal, until `\\q` or Ctrl-D. Closes the engine.

    Returns:
        The exit code: 0, 1 where the warehouse could not be opened, or 130 where Ctrl-C had to end it.
    """
    reader = TerminalReader(shell) if reader is None else reader
    if greeting:
        shell.write(greeting)
    try:
        while True:
            try:
                entry = reader.read(TRANSACTION_PROMPT if shell.in_transaction else PROMPT)
                if not _run_entry(shell, entry):
                    break
            except KeyboardInterrupt:
                continue
            except EOFError:
                break
        return _leave(shell)
    except OpeningFailed:
        shell.call(lambda _engine: "")  # shows why
        return 1
    except Leave:
        return _INTERRUPTED


def run_pipe(shell: Shell, stream: TextIO, *, drain: bool = True) -> int:
    """Runs what a pipe or a file gives, as if it were typed, and closes the engine.

    Args:
        drain: waits at the end for the queries that the statements moved.

    Returns:
        0, or 1 if anything failed.
    """
    try:
        for text, line in read_pipe(stream):
            if text.startswith("\\"):
                if not run_command(shell, text):
                    break
            else:
                shell.run_text(text, "<stdin>", first_line=line, keep_going=True)
            if shell.opening.error is not None:
                return 1
            if shell.cancelled:
                break
        return finish_script(shell, drain=drain)
    except (Leave, KeyboardInterrupt):
        return _INTERRUPTED


def finish_script(shell: Shell, *, drain: bool = True) -> int:
    """Ends what ran without a person: an open transaction is an error, queries catch up, the engine closes."""
    if shell.in_transaction and shell.end_transaction():
        shell.complain(
            CQError(
                "the statements end inside a transaction, which was rolled back", hint="end it with COMMIT"
            )
        )
    if drain and shell.opening.error is None and not shell.cancelled:
        shell.drain()
    shell.close()
    if shell.cancelled:
        return _INTERRUPTED
    return 1 if shell.failures else 0


def read_pipe(stream: TextIO) -> Iterator[tuple[str, int]]:
    """Entries of a text and the line, from 1, in which each begins. The last one need not be complete."""
    lines: list[str] = []
    first = 1
    for number, line in enumerate(stream, start=1):
        if line.startswith("\\") and is_entry_complete("".join(lines)):
            lines = []  # comments only
        if not lines:
            if not line.strip():
                continue
            first = number
        lines.append(line)
        # A statement ends with its semicolon, so lines without one need no look.
        if lines[0].startswith("\\") or (";" in line and is_entry_complete("".join(lines))):
            yield "".join(lines), first
            lines = []
    if lines:
        yield "".join(lines), first


def is_entry_complete(text: str) -> bool:
    """True where Enter runs what was typed: commands, nothing but comments, and statements up to their semicolon."""
    from cq_engine.grammar import is_complete, split

    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or stripped in _LEAVING_WORDS or _ends_in_quit(text):
        return True
    return is_complete(text) or not split(text)


def _ends_in_quit(text: str) -> bool:
    """True where a last line `\\q` gives up the statement above it."""
    return text.rstrip().rpartition("\n")[2].strip() == "\\q"


def _run_entry(shell: Shell, entry: str) -> bool:
    """Runs one entry of the prompt; False if the session is to end."""
    shell.cancelled = False
    stripped = entry.strip()
    if stripped.rstrip(";") in _LEAVING_WORDS or _ends_in_quit(entry):
        return False
    if stripped.startswith("\\"):
        return run_command(shell, stripped)
    if stripped:
        shell.run_text(entry, "<input>")
    return True


def _leave(shell: Shell) -> int:
    if shell.end_transaction():
        shell.write("The open transaction was rolled back.")
    shell.close()
    return 0


# ---------------------------------------------------------------- the terminal


class OpeningFailed(Exception):
    """The warehouse turned out not to open while the prompt waited for input."""


class TerminalReader:
    """Reads entries of many lines from a terminal, with a history that lasts and completion on Tab.

    `input` and `output` are prompt_toolkit's and replace the terminal in tests.
    """

    def __init__(self, shell: Shell, *, input: Any = None, output: Any = None) -> None:  # noqa: A002
        from prompt_toolkit import PromptSession

        self._shell = shell
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            multiline=True,
            prompt_continuation=_continuation,
            key_bindings=_bindings(),
            completer=_completer(shell),
            complete_while_typing=False,
            input=input,
            output=output,
        )
        shell.opening.when_failed(self._opening_failed)

    def read(self, prompt: str) -> str:
        from prompt_toolkit.patch_stdout import patch_stdout

        if self._shell.opening.error is not None:
            raise OpeningFailed
        # What callbacks print meanwhile goes above the prompt and not through it.
        with patch_stdout(raw=True):
            return self._session.prompt(prompt, pre_run=self._before)

    def _before(self) -> None:
        # The prompt stands; from here on imports delay nobody.
        self._shell.opening.begin()
        if self._shell.opening.error is not None:
            self._session.app.exit(exception=OpeningFailed())

    def _opening_failed(self) -> None:
        """Called in another thread."""
        app = self._session.app
        loop = app.loop
        if loop is None or not app.is_running:
            return  # `read` or `_before` sees it

        def leave() -> None:
            with contextlib.suppress(Exception):  # the prompt may have ended by itself
                app.exit(exception=OpeningFailed())

        loop.call_soon_threadsafe(leave)


def _continuation(width: int, _line: int, _wrapped: int) -> str:
    return "> ".rjust(width)


def _history() -> History:
    """The history file, or a history of this session where there can be no file."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = state_directory() / "history"
    try:
        private.make_directory(path.parent)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _bindings() -> KeyBindings:
    """Enter runs an entry that is complete and begins a new line otherwise; so does Alt-Enter always."""
    from prompt_toolkit.filters import completion_is_selected, is_searching
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("enter", filter=~is_searching & ~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_entry_complete(buffer.text):
            # The cursor may stand in the middle, where what follows would overwrite the entry.
            buffer.cursor_position = len(buffer.text)
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @bindings.add("enter", filter=completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return bindings


def _completer(shell: Shell) -> Completer:
    """Completes commands, keywords and the names of tables and queries."""
    from prompt_toolkit.completion import WordCompleter

    def words() -> list[str]:
        return sorted({*_KEYWORDS, *(name for command in COMMANDS for name in command.names), *_names(shell)})

    class _Words(WordCompleter):
        """Uppercase keywords for what is typed in lower case, too."""

        def get_completions(self, document: Document, complete_event: Any) -> Any:
            if document.get_word_before_cursor(WORD=True):
                return super().get_completions(document, complete_event)
            return iter(())

    return _Words(words, ignore_case=True, WORD=True)


def _names(shell: Shell) -> list[str]:
    engine = shell.opening.current
    if engine is None:
        return []
    try:
        state = engine.catalog.state
    except Exception:  # noqa: BLE001 - completion helps or is silent
        return []
    return [
        *(table.name for table in state.tables.values()),
        *(query.name for query in state.queries.values()),
        *(each.name for each in state.destinations.values()),
        *(each.name for each in state.sources.values()),
        *(each.name for each in state.captures.values()),
    ]


_KEYWORDS = (
    "ACK", "ADVISE CAPTURE FROM", "ALTER", "AND", "BEGIN", "BETWEEN", "CALLBACK", "CAPTURE", "CAPTURES", "CASE", "CHANGES", "CHECK CONSTRAINTS", "COMMIT", "COMPACT TABLE",
    "COMPRESSED", "COMPUTE", "CONTINUOUS QUERIES", "CONTINUOUS QUERY", "COPY INTO", "CREATE", "CREATE CAPTURE", "CREATE CONTINUOUS QUERY",
    "CREATE DESTINATION", "CREATE SOURCE", "CREATE TABLE", "CRON", "DELETE FROM", "DELTA", "DEQUEUE", "DESCRIBE", "DESTINATION", "DESTINATIONS", "DISTINCT", "DROP",
    "EVERY", "EXPLAIN", "FOLLOW", "FOREIGN KEY", "FROM", "FROM VERSION", "GROUP", "GROUP BY", "HAVING", "INSERT INTO", "JOIN", "LEFT JOIN",
    "LIMIT", "MERGE INTO", "ON COMMIT", "ON DEMAND", "ORDER BY", "PAUSE", "PRIMARY KEY", "REFERENCES", "REFRESH",
    "REFRESHES", "REJECT", "REPLAY FROM VERSION", "RESUME", "ROLLBACK", "SELECT", "SET", "SHOW", "SKIP TO VERSION", "SNAPSHOT", "SOURCE", "SOURCES", "START FROM", "TABLE", "TABLES",
    "TRANSACTIONAL", "TRUNCATE TABLE", "UNION ALL", "UPDATE", "VACUUM", "VALUES", "UP TO", "USING", "VERSION AS OF", "WAIT", "WHERE", "WITH",
)  # fmt: skip


def stdin_is_terminal() -> bool:
    """True where a person types."""
    return sys.stdin is not None and sys.stdin.isatty()
