"""The prompt's own commands: lines that begin with a backslash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cq_engine.core.errors import CQError, CQSyntaxError, did_you_mean
from cq_engine.query.rendering import FORMATS
from cq_engine.repl.shell import Shell

__all__ = ["COMMANDS", "Command", "help_text", "run_command"]


@dataclass(frozen=True)
class Command:
    """One command. `run` gets the text after the name and returns False where the session is to end."""

    names: tuple[str, ...]
    argument: str
    summary: str
    run: Callable[[Shell, str], bool]

    @property
    def usage(self) -> str:
        """The names and the argument as help shows them."""
        return " ".join(part for part in (", ".join(self.names), self.argument) if part)


def run_command(shell: Shell, line: str) -> bool:
    """Runs a line that begins with a backslash; False if the session is to end.

    Errors, an unknown command among them, are shown and counted by the shell.
    """
    # `\\limit 5;` is what fingers type that have just typed SQL.
    name, _, argument = line.strip().rstrip(";").partition(" ")
    command = next((command for command in COMMANDS if name in command.names), None)
    if command is None:
        names = [each for known in COMMANDS for each in known.names]
        hint = did_you_mean(name, names, "\\? lists the commands")
        shell.complain(CQSyntaxError(f"there is no command {name}", hint=hint))
        return True
    try:
        return command.run(shell, argument.strip())
    except CQError as error:
        shell.complain(error)
        return True


def help_text() -> str:
    """The commands, and what the language has."""
    width = max(len(command.usage) for command in COMMANDS)
    lines = [f"  {command.usage:<{width}}  {command.summary}" for command in COMMANDS]
    return "\n".join(("Commands", *lines, "", _LANGUAGE))


def _quit(_shell: Shell, _argument: str) -> bool:
    return False


def _help(shell: Shell, _argument: str) -> bool:
    shell.write(help_text())
    return True


def _describe(shell: Shell, argument: str) -> bool:
    from cq_engine.repl.describe import (  # the language: the prompt stands by now
        describe_name,
        describe_warehouse,
    )

    if argument:
        shell.call(lambda engine: describe_name(engine.overview(), argument))
    else:
        shell.call(lambda engine: describe_warehouse(engine.overview()))
    return True


def _include(shell: Shell, argument: str) -> bool:
    if not argument:
        raise CQSyntaxError("\\i needs a file", hint="\\i setup.cql")
    if shell.settings.restricted:
        raise CQError("\\i is switched off (restricted = on)", hint="cq run FILE runs a script")
    shell.run_file(argument.strip("'\""))
    return True


def _timing(shell: Shell, argument: str) -> bool:
    shell.settings.timing = _switch("\\timing", argument, shell.settings.timing)
    shell.write(f"Timing is {'on' if shell.settings.timing else 'off'}.")
    return True


def _set_expanded(shell: Shell, argument: str) -> bool:
    if argument.lower() == "auto":
        shell.settings.expanded = "auto"
    else:
        shell.settings.expanded = "on" if _switch("\\x", argument, shell.settings.expanded == "on") else "off"
    shell.write(f"Expanded display is {shell.settings.expanded}.")
    return True


def _limit(shell: Shell, argument: str) -> bool:
    if argument:
        if not argument.isdecimal():
            raise CQSyntaxError(
                f"\\limit takes a number of rows, not {argument}", hint="\\limit 0 shows all rows"
            )
        shell.settings.limit = int(argument)
    limit = shell.limit
    shell.write(f"Results show up to {limit} rows." if limit else "Results show all rows.")
    return True


def _format(shell: Shell, argument: str) -> bool:
    if argument and argument.lower() not in FORMATS:
        raise CQSyntaxError(f"\\format takes {', '.join(FORMATS)}, not {argument}")
    shell.settings.format = argument.lower() or shell.settings.format
    shell.write(f"Rows are written as {shell.settings.format}.")
    return True


def _follow(shell: Shell, argument: str) -> bool:
    if not argument:
        raise CQSyntaxError("\\follow needs a continuous query", hint="\\follow name, \\follow name SNAPSHOT")
    shell.run_text(f"FOLLOW {argument}", "<input>")
    return True


def _drain(shell: Shell, _argument: str) -> bool:
    if shell.drain():
        shell.write("Every query and every destination has the newest commit.")
    return True


def _switch(name: str, argument: str, value: bool) -> bool:
    """The new value of a setting: the other one, or what the argument says."""
    if not argument:
        return not value
    if argument.lower() not in {"on", "off"}:
        raise CQSyntaxError(f"{name} takes on or off, not {argument}")
    return argument.lower() == "on"


COMMANDS: tuple[Command, ...] = (
    Command(("\\?", "\\h"), "", "this help", _help),
    Command(
        ("\\d",), "[NAME]", "tables, continuous queries and destinations, or all about one of them", _describe
    ),
    Command(("\\i",), "FILE", "run the statements of a file", _include),
    Command(
        ("\\follow",),
        "NAME [SNAPSHOT]",
        "show what changes in a query's result as it comes; Ctrl-C ends it",
        _follow,
    ),
    Command(("\\drain",), "", "wait until every ON COMMIT query and destination is up to date", _drain),
    Command(("\\timing",), "[on|off]", "show how long statements take", _timing),
    Command(
        ("\\x",), "[on|off|auto]", "show one line per value; auto: where a table is too wide", _set_expanded
    ),
    Command(("\\format",), f"[{'|'.join(FORMATS)}]", "how rows are written", _format),
    Command(("\\limit",), "[N]", "how many rows a result shows; 0: all", _limit),
    Command(("\\q",), "", "leave (so does Ctrl-D)", _quit),
)

_LANGUAGE = """\
Statements end with a semicolon and may take many lines
  CREATE TABLE t (...)              INSERT, UPDATE, DELETE, MERGE, TRUNCATE, COPY INTO t FROM 'path'
  BEGIN, COMMIT, ROLLBACK           SELECT ... FROM t [VERSION AS OF n]
  CREATE CONTINUOUS QUERY q PRIMARY KEY (...)
    COMPUTE [TRANSACTIONAL | COMPRESSED] [INSERT] [DELETE] [UPDATE] DELTA [ON COMMIT | EVERY n unit | ...]
    DESTINATION d AS SELECT ...
  SELECT ... FROM q [VERSION AS OF n] | FROM q CHANGES FROM VERSION a TO VERSION b
  FOLLOW q [SNAPSHOT | FROM VERSION n]
  REFRESH CONTINUOUS QUERY q        ALTER CONTINUOUS QUERY q PAUSE | RESUME | SET ...
  CREATE DESTINATION d TYPE type    ALTER DESTINATION d PAUSE | RESUME | REPLAY FROM VERSION n | SKIP TO VERSION n | DROP GROUP 'g'
  CREATE SOURCE s TYPE type WITH (url = '...')
  CREATE CAPTURE c INTO t FROM s TABLE 'relation' USING TIMESTAMP (ts) | CHECKSUM | COPY | RANGES | VIEW '...' | LOG [EVERY n unit]
  REFRESH CAPTURE c                 ALTER CAPTURE c PAUSE | RESUME | SET ...    ADVISE CAPTURE FROM s TABLE 'relation'
  DROP TABLE t                      DROP CONTINUOUS QUERY q | DESTINATION d | SOURCE s | CAPTURE c
  SHOW TABLES | CONTINUOUS QUERIES | DESTINATIONS | SOURCES | CAPTURES | REFRESHES
  DESCRIBE name                     EXPLAIN [ANALYZE] CONTINUOUS QUERY q | EXPLAIN SELECT ...

Ctrl-C clears the line or cancels the statement that runs."""
