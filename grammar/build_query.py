"""The rules of cq.lark about continuous queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lark import Token, v_args

from cq_engine.grammar import statements
from cq_engine.grammar.clauses import (
    Cron,
    DestinationRef,
    EveryInterval,
    OnCommit,
    OnDemand,
    OnDml,
    Options,
    StartFrom,
    StartWithPeriod,
    When,
)
from cq_engine.grammar.rules import Clause, Rules

_EVENTS = ("INSERT", "DELETE", "UPDATE")
_MARKERS = {"INSERT": "I", "DELETE": "D", "UPDATE": "U"}
_ALL_MARKERS = tuple(_MARKERS.values())
_CLAUSE_WORDS = ("COMPUTE", "CONSISTENCY", "DESTINATION", "PRIMARY")


@v_args(inline=True)
class QueryRules(Rules):
    """CREATE, ALTER, REFRESH and DROP CONTINUOUS QUERY."""

    # ------------------------------------------------------------ clauses

    def drop_mode(self, word: Token) -> bool:
        return word.upper() == "CASCADE"

    @v_args(meta=True, inline=True)
    def result_key(self, meta: Any, columns: tuple[str, ...]) -> Clause:
        return "PRIMARY KEY", columns, meta.start_pos

    @v_args(meta=True, inline=True)
    def consistency(self, meta: Any, level: str) -> Clause:
        return "CONSISTENCY", level, meta.start_pos

    @v_args(meta=True, inline=True)
    def delta(self, meta: Any, *events: Token) -> Clause:
        words = self._events(events)
        return "DELTA", tuple(_MARKERS[word] for word in words) or _ALL_MARKERS, meta.start_pos

    def _events(self, events: Sequence[Token]) -> tuple[str, ...]:
        """INSERT, DELETE, UPDATE in this order; an error where one stands twice."""
        found: set[str] = set()
        for event in events:
            if event.upper() in found:
                self.fail("duplicate_event", event.start_pos, event=event.upper())
            found.add(event.upper())
        return tuple(event for event in _EVENTS if event in found)

    @v_args(meta=True, inline=True)
    def compute(self, meta: Any, mode: str | None, delta: Clause | None) -> Clause:
        return "COMPUTE", (mode, delta), meta.start_pos

    @v_args(meta=True, inline=True)
    def on_commit(self, meta: Any) -> Clause:
        return "frequency", OnCommit(), meta.start_pos

    @v_args(meta=True, inline=True)
    def on_demand(self, meta: Any) -> Clause:
        return "frequency", OnDemand(), meta.start_pos

    @v_args(meta=True, inline=True)
    def every(self, meta: Any, period: tuple[int, str]) -> Clause:
        return "frequency", EveryInterval(*period), meta.start_pos

    @v_args(meta=True, inline=True)
    def start_with_period(self, meta: Any, start: Token, period: tuple[int, str]) -> Clause:
        return "frequency", StartWithPeriod(str(start), *period), meta.start_pos

    @v_args(meta=True, inline=True)
    def cron(self, meta: Any, expression: Token) -> Clause:
        if len(expression.split()) != 5:
            self.fail("cron_fields", expression.start_pos, found=str(len(expression.split())))
        return "frequency", Cron(str(expression)), meta.start_pos

    def events(self, *events: Token) -> tuple[str, ...]:
        return self._events(events)

    @v_args(meta=True, inline=True)
    def on_dml(self, meta: Any, events: tuple[str, ...], tables: tuple[str, ...]) -> Clause:
        return "frequency", OnDml(events, tables), meta.start_pos

    def period(self, count: Token, unit: Token) -> tuple[int, str]:
        digits = count.strip()
        if not re.fullmatch("[0-9]{1,9}", digits) or int(digits) == 0:
            self.fail("bad_period", count.start_pos, found=repr(str(count)))
        return int(digits), unit.upper().rstrip("S")

    def target(self, kind: str | None, name: Token) -> DestinationRef:
        self._not_a_clause(name)
        return DestinationRef(str(name), kind)

    def _not_a_clause(self, name: Token) -> None:
        """An error where a name is forgotten, so that the word of the next clause would be taken for it."""
        quoted = self.source.text[name.start_pos or 0] == "`"
        if not quoted and name.upper() in _CLAUSE_WORDS:
            self.fail("reserved_name", name.start_pos, found=f"'{name}'")

    @v_args(meta=True, inline=True)
    def destination(self, meta: Any, *targets: DestinationRef) -> Clause:
        return "DESTINATION", targets, meta.start_pos

    @v_args(meta=True, inline=True)
    def no_destination(self, meta: Any) -> Clause:
        return "DESTINATION", (), meta.start_pos

    def point(self, word: Token, version: Token | None = None) -> StartFrom:
        return StartFrom(word.upper(), None if version is None else int(version))

    @v_args(meta=True, inline=True)
    def start_from(self, meta: Any, point: StartFrom) -> Clause:
        return "START FROM", point, meta.start_pos

    @v_args(meta=True, inline=True)
    def options(self, meta: Any, options: Options) -> Clause:
        return "WITH", tuple((name.lower(), value) for name, value in options), meta.start_pos

    # ------------------------------------------------------------ statements

    def clauses(self, *clauses: Clause) -> dict[str, Any]:
        """The clauses by name, with `mode` and `DELTA` taken out of COMPUTE."""
        flat: list[Clause] = []
        for clause, following in zip(clauses, (*clauses[1:], None), strict=False):
            name, value, offset = clause
            flat.append(clause)
            if name != "COMPUTE":
                continue
            mode, delta = value
            if mode is None and delta is None and (following is None or following[0] != "frequency"):
                self.fail("empty_compute", offset)
            if mode is not None:
                flat.append(("mode", mode, offset))
            if delta is not None:
                flat.append(delta)
        return self.once(flat)

    def defining_query(self, text: Token) -> tuple[str, int]:
        return self.slice(text), text.start_pos or 0

    def create_query(
        self,
        or_replace: bool | None,
        if_not_exists: bool | None,
        name: Token,
        clauses: dict[str, Any],
        query: tuple[str, int],
    ) -> statements.CreateContinuousQuery:
        self._not_a_clause(name)
        if or_replace and if_not_exists:
            self.fail("replace_and_exists", name.start_pos)
        text, offset = query
        return statements.CreateContinuousQuery(
            name=str(name),
            query=text,
            primary_key=clauses.get("PRIMARY KEY"),
            mode=clauses.get("mode", "TRANSACTIONAL"),
            markers=clauses.get("DELTA", _ALL_MARKERS),
            when=clauses.get("frequency", OnCommit()),
            destinations=clauses.get("DESTINATION", ()),
            start=clauses.get("START FROM", StartFrom()),
            options=clauses.get("WITH", ()),
            or_replace=bool(or_replace),
            if_not_exists=bool(if_not_exists),
            query_offset=offset,
            consistency=clauses.get("CONSISTENCY"),
        )

    def pause(self) -> dict[str, Any]:
        return {"action": "PAUSE"}

    def resume(self, point: StartFrom | None) -> dict[str, Any]:
        return {"action": "RESUME", "start": point}

    def settings(self, *clauses: Clause) -> dict[str, Any]:
        for name, value, offset in clauses:
            if name == "COMPUTE" and value[0] is not None:
                self.fail("alter_mode", offset, mode=value[0])
        found = self.clauses(*clauses)
        when: When | None = found.get("frequency")
        return {
            "action": "SET",
            "when": when,
            "markers": found.get("DELTA"),
            "destinations": found.get("DESTINATION"),
            "options": found.get("WITH", ()),
        }

    def redefine(self, text: Token) -> dict[str, Any]:
        return {"action": "AS", "query": self.slice(text), "query_offset": text.start_pos or 0}

    def alter_query(self, name: Token, change: dict[str, Any]) -> statements.AlterContinuousQuery:
        return statements.AlterContinuousQuery(str(name), **change)

    def refresh_query(self, name: Token) -> statements.RefreshContinuousQuery:
        return statements.RefreshContinuousQuery(str(name))

    def drop_query(
        self, if_exists: bool | None, name: Token, cascade: bool | None
    ) -> statements.DropContinuousQuery:
        return statements.DropContinuousQuery(str(name), bool(if_exists), bool(cascade))

    def follow(self, name: Token, start: StartFrom | None) -> statements.Follow:
        return statements.Follow(str(name), start or StartFrom())
