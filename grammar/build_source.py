"""The rules of cq.lark about sources, and about captures, which fill tables from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lark import Token, v_args

from cq_engine.grammar import statements
from cq_engine.grammar.clauses import CapturedColumn, CaptureMethod, EveryInterval, OnCommit, OnDml, Options
from cq_engine.grammar.rules import Clause, Rules

Change = dict[str, Any]
"""What an ALTER statement says besides the name."""


@v_args(inline=True)
class SourceRules(Rules):
    """CREATE, ALTER and DROP of SOURCE and CAPTURE, REFRESH and ADVISE CAPTURE; options and frequencies are those of
    queries, `pause`, `resume_delivery` and `set_options` those of destinations."""

    def create_source(
        self, if_not_exists: bool | None, name: Token, kind: Token, options: Options
    ) -> statements.CreateSource:
        return statements.CreateSource(str(name), kind.lower(), options, bool(if_not_exists))

    def source_clauses(self, *clauses: Clause) -> Options:
        options: Options = self.once(clauses).get("WITH", ())
        return options

    def alter_source(self, name: Token, change: Change) -> statements.AlterSource:
        return statements.AlterSource(str(name), change["options"])

    def drop_source(self, if_exists: bool | None, name: Token, cascade: bool | None) -> statements.DropSource:
        return statements.DropSource(str(name), bool(if_exists), bool(cascade))

    # ------------------------------------------------------------ what is captured

    def captured(self, *clauses: Clause) -> tuple[Clause, ...]:
        return clauses

    @v_args(meta=True, inline=True)
    def relation(self, meta: Any, name: Token) -> Clause:
        return "TABLE", self._not_empty(name, "TABLE"), meta.start_pos

    @v_args(meta=True, inline=True)
    def captured_columns(self, meta: Any, *columns: CapturedColumn) -> Clause:
        return "columns", columns, meta.start_pos

    def captured_column(self, name: Token, target: Token | None) -> CapturedColumn:
        return CapturedColumn(str(name), str(name if target is None else target))

    @v_args(meta=True, inline=True)
    def restriction(self, meta: Any, text: Token) -> Clause:
        return "WHERE", self._not_empty(text, "WHERE"), meta.start_pos

    def _not_empty(self, text: Token, clause: str) -> str:
        if not text.strip():
            self.fail("capture_empty", text.start_pos, clause=clause)
        return str(text)

    # ------------------------------------------------------------ methods

    def by_timestamp(self, column: Token, deleted: Token | None) -> CaptureMethod:
        flag = None if deleted is None else str(deleted)
        return CaptureMethod("TIMESTAMP", str(column), flag)

    def by_checksum(self, column: Token | None) -> CaptureMethod:
        return CaptureMethod("CHECKSUM", None if column is None else str(column))

    def by_copy(self) -> CaptureMethod:
        return CaptureMethod("COPY")

    @v_args(meta=True, inline=True)
    def with_checksum(self, meta: Any) -> Clause:
        return "CHECKSUM", None, meta.start_pos

    def by_ranges(self, *inside: Clause | None) -> CaptureMethod:
        given = [clause for clause in inside if clause is not None]
        marks = [clause for clause in given if clause[1] is None]
        checksum = bool(self.once(marks))
        options = self.option_list(*(clause for clause in given if clause[1] is not None))
        return CaptureMethod("RANGES", checksum=checksum, options=options)

    def by_view(self, query: Token) -> CaptureMethod:
        return CaptureMethod("VIEW", query=self._not_empty(query, "VIEW"))

    def by_log(self) -> CaptureMethod:
        return CaptureMethod("LOG")

    def _with_options(self, method: CaptureMethod, clause: Clause) -> CaptureMethod:
        """`method` with the options that stand behind it."""
        given = [(name, value, clause[2]) for name, value in (*method.options, *clause[1])]
        return replace(method, options=self.option_list(*given))

    # ------------------------------------------------------------ captures

    def capture_method(self, method: CaptureMethod, *clauses: Clause) -> Change:
        if clauses and clauses[0][0] == "WITH":
            method, clauses = self._with_options(method, clauses[0]), clauses[1:]
        given = self._scheduled(clauses)
        when = given.get("frequency", EveryInterval(1, "MINUTE"))
        return {"method": method, "when": when, "options": given.get("WITH", ())}

    def create_capture(
        self, if_not_exists: bool | None, name: Token, table: Token, source: Token, *said: Any
    ) -> statements.CreateCapture:
        captured, how = said
        what = self.once(captured)
        if how["method"].query is not None and "TABLE" in what:
            self.fail("capture_view_table", next(at for clause, _, at in captured if clause == "TABLE"))
        return statements.CreateCapture(
            name=str(name),
            table=str(table),
            source=str(source),
            relation=what.get("TABLE"),
            columns=what.get("columns", ()),
            where=what.get("WHERE"),
            if_not_exists=bool(if_not_exists),
            **how,
        )

    def _scheduled(self, clauses: Sequence[Clause]) -> dict[str, Any]:
        """The clauses by name; an error where a frequency asks for commits here, since a capture reads elsewhere."""
        for name, value, offset in clauses:
            if name == "frequency" and isinstance(value, OnCommit | OnDml):
                self.fail("capture_when", offset)
        return self.once(clauses)

    def capture_settings(self, *clauses: Clause) -> Change:
        given = self._scheduled(clauses)
        return {"action": "SET", "when": given.get("frequency"), "options": given.get("WITH", ())}

    def alter_capture(self, name: Token, change: Change) -> statements.AlterCapture:
        return statements.AlterCapture(str(name), **change)

    def refresh_capture(self, name: Token) -> statements.RefreshCapture:
        return statements.RefreshCapture(str(name))

    def drop_capture(self, if_exists: bool | None, name: Token) -> statements.DropCapture:
        return statements.DropCapture(str(name), bool(if_exists))

    def advise(self, verbose: bool | None, source: Token, relation: Token) -> statements.AdviseCapture:
        return statements.AdviseCapture(str(source), self._not_empty(relation, "TABLE"), bool(verbose))
