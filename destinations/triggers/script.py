"""The script of a trigger: checked when it is declared and when a query names it, run once for each transaction.

The functions of deltas stand for values of the transaction, and become literals before Spark sees a statement. Places in
errors are places in the script as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import cast

from pyspark.sql import DataFrame

from cq_engine.catalog.graph import source_query
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.context.services import Services
from cq_engine.core.errors import (
    AnalysisError,
    ConflictError,
    CQError,
    LeaseError,
    Location,
    did_you_mean,
    location_at,
)
from cq_engine.destinations.triggers.transitions import (
    DELTAS,
    TRANSITIONS,
    Given,
    check_names,
    deltas,
    empty,
    tables,
)
from cq_engine.grammar import Dml, Script, parse_script
from cq_engine.grammar.scan import scan
from cq_engine.grammar.source import SourceText
from cq_engine.query.query import Resolver, unknown_table
from cq_engine.spark.sql import Composed, trace
from cq_engine.storage.file_look_ups import Restrict
from cq_engine.transactions.transaction import Transaction, effect_of

__all__ = ["Step", "check_columns", "check_script", "filtered", "run_step", "steps"]

_CALL = re.compile(
    r"(?<![\w.`])(?:cq_commit_version|cq_commit_time|cq_delta_marker|delta_marker)\s*\(\s*\)", re.IGNORECASE
)
_OF_DELTAS = {
    "cq_commit_version": "_cq_version", "cq_commit_time": "_cq_time", "cq_delta_marker": "_cq_marker",
    "delta_marker": "_cq_marker",
}  # fmt: skip
"""What a WHEN has for them."""


@dataclass(frozen=True)
class Step:
    """One statement of a script; `offset` is its place in it."""

    number: int
    offset: int
    statement: Dml

    def where(self, script: Script, offset: int) -> str:
        """Where in the script the error lies, in words."""
        place = location_at(script.text, offset)
        return f"statement {self.number} (line {place.line}, column {place.column} of its script)"


@lru_cache(maxsize=256)  # deliveries ask for the same ones
def steps(script: Script) -> tuple[Step, ...]:
    """The statements. Raises CQSyntaxError."""
    parsed = parse_script(SourceText(script.text))
    return tuple(Step(number, offset, statement) for number, (offset, statement) in enumerate(parsed, 1))


# ---------------------------------------------------------------- before it runs


def check_script(services: Services, name: str, script: Script, at: Callable[[int], Location]) -> None:
    """Raises AnalysisError where the script names a table that is not there. `at` gives the place of an offset in the
    statement that declares it."""
    services.rights.check_stored(script.text + script.condition)
    for step in steps(script):
        try:
            effect_of(step.statement, _Names(services))
        except _Named:
            pass
        except CQError as error:
            error.location = at(script.offset + step.offset + _offset(error, step.statement.text))
            raise
    if script.condition:
        try:
            _Names(services).condition(script.condition, name)
        except CQError as error:
            error.location = at(script.condition_offset)
            raise


def check_columns(services: Services, query: ContinuousQuery, name: str, script: Script) -> None:
    """Raises AnalysisError where the script cannot run over the deltas of the query."""
    check_names(query)
    rows = empty(query)
    for step in steps(script):
        filled, positions = _filled(step.statement.text, _values(1, datetime.now(timezone.utc)))
        resolver = Resolver(services)
        resolver.given = tables(services, query, rows)
        try:
            effect_of(replace(step.statement, text=filled), resolver)
        except CQError as error:
            where = step.where(script, step.offset + _back(error, filled, positions))
            raise _misfit(name, query, f"in {where}", error) from error
    try:
        filtered(services, script.condition, deltas(services, query, rows, {}), trusted=False)
    except CQError as error:
        raise _misfit(name, query, "in its WHEN", error) from error


def _misfit(name: str, query: ContinuousQuery, where: str, error: CQError) -> AnalysisError:
    names = ", ".join(c.name for c in query.result.columns[: query.width])
    return AnalysisError(
        f"trigger {name} cannot run for continuous query {query.name}, {where}: {error.message}",
        detail=error.detail,
        hint=error.hint
        or f"inserted, deleted and updated have the columns {names}; updated has old_<column>, too",
    )


class _Named(Exception):
    """All names of a statement are known."""


class _Names(Resolver):
    """Looks at the names of tables only, of which a script knows more than of columns before a query names it."""

    def frame(self, query: str | Composed) -> DataFrame:
        source = Composed.plain(query) if isinstance(query, str) else query
        for reference in self._references(source):
            name = reference.name
            known = name in self.extra or name.lower() in (*TRANSITIONS, *self.state.tables)
            if not known and source_query(self.state, name) is None:
                unknown = unknown_table(self.state, name, source.location(reference.start))
                unknown.hint = did_you_mean(name, TRANSITIONS, unknown.hint)
                raise unknown
        raise _Named

    def physical(self, table: object, restrict: Restrict | None = None) -> DataFrame:  # noqa: ARG002
        return cast("DataFrame", None)  # nobody looks at it

    def condition(self, text: str, name: str) -> None:
        """Raises AnalysisError where a WHEN reads tables."""
        if len(self._references(_asked(text))) > 1:
            raise AnalysisError(
                f"WHEN of trigger {name} reads a table",
                detail="it is asked of each delta, and sees the columns of the query, old_<column>, cq_delta_marker(), "
                "cq_commit_version() and cq_commit_time()",
                hint="ask in the WHERE of a statement of the script",
            )


# ---------------------------------------------------------------- when it runs


def run_step(transaction: Transaction, script: Script, step: Step, version: int, time: datetime) -> None:
    """Runs one statement. Raises CQError, which says where in the script it is."""
    filled, positions = _filled(step.statement.text, _values(version, time))
    try:
        transaction.execute(replace(step.statement, text=filled))
    except (ConflictError, LeaseError):
        raise
    except CQError as error:
        where = step.where(script, step.offset + _back(error, filled, positions))
        raise CQError(f"{where}: {error.message}", detail=error.detail, hint=error.hint) from error


def filtered(services: Services, condition: str, given: Given, *, trusted: bool = True) -> DataFrame:
    """The rows of DELTAS for which a WHEN holds; all of them where there is none."""
    if not condition:
        return given[DELTAS]()
    resolver = Resolver(services)
    resolver.given, resolver.trusted = given, trusted
    return resolver.frame(_asked(condition))


def _asked(condition: str) -> Composed:
    filled, _ = _filled(condition, _OF_DELTAS)
    return Composed(filled).add(f"SELECT * FROM {DELTAS} WHERE (").take(0, len(filled)).add("\n)")


def _values(version: int, time: datetime) -> dict[str, str]:
    moment = time.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
    return {
        "cq_commit_version": f"CAST({version} AS BIGINT)",
        "cq_commit_time": f"CAST('{moment}Z' AS TIMESTAMP)",
    }


def _filled(text: str, values: Mapping[str, str]) -> tuple[str, dict[int, int]]:
    """The text with values in the place of the functions, and where its pieces stood before."""
    pieces, positions, done, length = [], {0: 0}, 0, 0
    for call in _CALL.finditer(scan(text).skeleton):
        value = values.get(call.group().partition("(")[0].strip().lower())
        if value is None:
            continue
        pieces += [text[done : call.start()], value]
        positions[length + call.start() - done] = call.start()
        length += call.start() - done + len(value)
        done = call.end()
        positions[length] = done
    return "".join([*pieces, text[done:]]), positions


def _back(error: CQError, filled: str, positions: Mapping[int, int]) -> int:
    """Where in the text before `_filled` an error lies; 0 where it does not say."""
    return trace(positions, _offset(error, filled)) or 0


def _offset(error: CQError, text: str) -> int:
    if error.location is None:
        return 0
    lines = text.splitlines(keepends=True)[: error.location.line - 1]
    return sum(map(len, lines)) + error.location.column - 1
