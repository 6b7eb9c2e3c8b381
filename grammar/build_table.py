"""The rules of cq.lark about tables: columns, types, constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark import Token, v_args

from cq_engine.grammar import statements
from cq_engine.grammar.clauses import (
    CaptureMethod,
    ColumnSpec,
    ForeignKeySpec,
    OnCommit,
    OnDml,
    Options,
    PrimaryKeySpec,
    RemoteRelation,
    When,
)
from cq_engine.grammar.column_types import INTERVAL_FIELDS, type_problem
from cq_engine.grammar.names import quote_name, string_literal
from cq_engine.grammar.rules import Clause, Rules

Element = tuple[ColumnSpec | None, PrimaryKeySpec | None, ForeignKeySpec | None, int]
"""What one element of a column list says, and its offset. A column may carry constraints."""


@dataclass(frozen=True)
class _FromDelta:
    """FROM DELTA 'path' [frequency]."""

    path: str
    when: When | None


@v_args(inline=True)
class TableRules(Rules):
    """CREATE, ALTER and DROP TABLE, COMPACT TABLE, CHECK CONSTRAINTS."""

    # ------------------------------------------------------------ types, as canonical text

    def numbers(self, *numbers: Token) -> str:
        return ",".join(numbers)

    def plain_type(self, name: Token, numbers: str | None, collation: Token | None) -> str:
        word = name.upper()
        problem = type_problem(word, numbers)
        if problem is not None:
            self.fail(problem.key, name.start_pos, type=str(name), fix=problem.fix)
        text = word if numbers is None else f"{word}({numbers})"
        if collation is None:
            return text
        if word != "STRING":
            self.fail("collation", collation.start_pos, type=word)
        return f"{text} COLLATE {quote_name(collation)}"

    def array_type(self, element: str) -> str:
        return f"ARRAY<{element}>"

    def map_type(self, key: str, value: str) -> str:
        return f"MAP<{key}, {value}>"

    def field(self, name: Token, kind: str, not_null: Clause | None, comment: Clause | None) -> str:
        text = f"{quote_name(name)}: {kind}"
        if not_null is not None:
            text += " NOT NULL"
        return text if comment is None else f"{text} COMMENT {string_literal(comment[1])}"

    def struct_type(self, *fields: str | None) -> str:
        return f"STRUCT<{', '.join(field for field in fields if field is not None)}>"

    def interval_type(self, first: Token | None, last: Token | None) -> str:
        if first is None:
            return "INTERVAL"
        words = [str(field).upper() for field in (first, last) if field is not None]
        for families in INTERVAL_FIELDS:
            places = [families.index(word) for word in words if word in families]
            if len(places) == len(words) and places == sorted(set(places)):
                return f"INTERVAL {' TO '.join(words)}"
        return self.fail("interval_type", first.start_pos, type=f"INTERVAL {' TO '.join(words)}")

    # ------------------------------------------------------------ columns and constraints

    @v_args(meta=True, inline=True)
    def not_null(self, meta: Any) -> Clause:
        return "NOT NULL", None, meta.start_pos

    @v_args(meta=True, inline=True)
    def nullable(self, meta: Any) -> Clause:
        return "NULL", None, meta.start_pos

    @v_args(meta=True, inline=True)
    def comment(self, meta: Any, text: Token) -> Clause:
        return "COMMENT", str(text), meta.start_pos

    @v_args(meta=True, inline=True)
    def inline_key(self, meta: Any) -> Clause:
        return "PRIMARY KEY", None, meta.start_pos

    @v_args(meta=True, inline=True)
    def inline_reference(self, meta: Any, table: Token, columns: tuple[str, ...] | None) -> Clause:
        return "REFERENCES", (str(table), columns or ()), meta.start_pos

    @v_args(meta=True, inline=True)
    def constraint_name(self, meta: Any, name: Token) -> Clause:
        return "CONSTRAINT", str(name), meta.start_pos

    @v_args(meta=True, inline=True)
    def trait(self, meta: Any, *words: Token) -> Clause:
        return " ".join(words).upper(), None, meta.start_pos

    def _traits(self, traits: tuple[Clause, ...], enforced: bool) -> tuple[bool, bool]:
        """(enforced, rely) of a constraint that is `enforced` unless it says otherwise."""
        found = self.once(
            ("ENFORCED" if name.endswith("ENFORCED") else "RELY", name, offset) for name, _, offset in traits
        )
        if "ENFORCED" in found:
            enforced = found["ENFORCED"] == "ENFORCED"
        return enforced, found.get("RELY") == "RELY"

    @v_args(meta=True, inline=True)
    def table_key(self, meta: Any, name: Clause | None, columns: tuple[str, ...], *traits: Clause) -> Element:
        enforced, rely = self._traits(traits, enforced=True)
        key = PrimaryKeySpec(columns, enforced, rely, None if name is None else name[1])
        return None, key, None, meta.start_pos

    @v_args(meta=True, inline=True)
    def foreign_key(
        self,
        meta: Any,
        name: Clause | None,
        columns: tuple[str, ...],
        table: Token,
        ref_columns: tuple[str, ...] | None,
        *traits: Clause,
    ) -> Element:
        enforced, rely = self._traits(traits, enforced=False)
        constraint = None if name is None else name[1]
        key = ForeignKeySpec(columns, str(table), ref_columns or (), constraint, enforced, rely)
        return None, None, key, meta.start_pos

    @v_args(meta=True, inline=True)
    def column(self, meta: Any, name: Token, kind: str, *parts: Clause) -> Element:
        """A column; ENFORCED and RELY belong to the constraint that stands before them."""
        column = str(name)
        own: list[Clause] = []
        traits: dict[str, list[Clause]] = {"PRIMARY KEY": [], "REFERENCES": []}
        names: dict[str, str | None] = {}
        constraint: str | None = None
        pending: str | None = None
        for part in parts:
            if part[0] in traits:
                constraint = part[0]
                names[constraint], pending = pending, None
            elif part[0] == "CONSTRAINT":
                pending = part[1]
                continue
            elif part[0].endswith(("ENFORCED", "RELY")):
                if constraint is None:
                    self.fail("trait_without_constraint", part[2], trait=part[0])
                traits[constraint].append(part)
                continue
            own.append(part)
        found = self.once(own)
        if "NULL" in found and "NOT NULL" in found:
            self.fail("null_and_not_null", own[-1][2], column=column)
        primary = foreign = None
        if "PRIMARY KEY" in found:
            enforced, rely = self._traits(tuple(traits["PRIMARY KEY"]), enforced=True)
            primary = PrimaryKeySpec((column,), enforced, rely, names["PRIMARY KEY"])
        if "REFERENCES" in found:
            table, ref_columns = found["REFERENCES"]
            enforced, rely = self._traits(tuple(traits["REFERENCES"]), enforced=False)
            foreign = ForeignKeySpec((column,), table, ref_columns, names["REFERENCES"], enforced, rely)
        spec = ColumnSpec(column, kind, "NOT NULL" not in found, found.get("COMMENT"))
        return spec, primary, foreign, meta.start_pos

    def elements(self, *elements: Element) -> tuple[Element, ...]:
        return elements

    # ------------------------------------------------------------ clauses and statements

    @v_args(meta=True, inline=True)
    def table_options(self, meta: Any, options: Options) -> Clause:
        return "WITH", options, meta.start_pos

    @v_args(meta=True, inline=True)
    def using(self, meta: Any, name: Token) -> Clause:
        if name.upper() != "DELTA":
            self.fail("using", name.start_pos, format=str(name))
        return "USING", None, meta.start_pos

    @v_args(meta=True, inline=True)
    def cluster_by(self, meta: Any, columns: tuple[str, ...]) -> Clause:
        return "CLUSTER BY", columns, meta.start_pos

    @v_args(meta=True, inline=True)
    def without_snapshot(self, meta: Any) -> Clause:
        return "WITHOUT SNAPSHOT", meta.start_pos, meta.start_pos

    def table_clauses(self, *clauses: Clause) -> dict[str, Any]:
        return self.once(clauses)

    def create_table(
        self,
        if_not_exists: bool | None,
        name: Token,
        elements: tuple[Element, ...] | None,
        clauses: dict[str, Any],
        origin: tuple[str, int] | _FromDelta | RemoteRelation | None,
    ) -> statements.CreateTable:
        primary: PrimaryKeySpec | None = None
        for _, key, _, offset in elements or ():
            if key is not None and primary is not None:
                self.fail("second_primary_key", offset, table=str(name))
            primary = key or primary
        columns = tuple(column for column, *_ in elements or () if column is not None)
        lake = origin if isinstance(origin, _FromDelta) else None
        remote = origin if isinstance(origin, RemoteRelation) else None
        query = origin if isinstance(origin, tuple) else None
        if not columns and origin is None:
            self.fail("table_without_columns", name.end_pos, table=str(name))
        without = clauses.get("WITHOUT SNAPSHOT")
        if without is not None and query is not None:
            self.fail("without_snapshot_as", without, table=str(name))
        if remote is not None:
            self._check_remote(name, without, elements or (), clauses)
        return statements.CreateTable(
            name=str(name),
            columns=columns,
            primary_key=primary,
            foreign_keys=tuple(key for _, _, key, _ in elements or () if key is not None),
            cluster_by=clauses.get("CLUSTER BY", ()),
            options=clauses.get("WITH", ()),
            query=None if query is None else query[0],
            if_not_exists=bool(if_not_exists),
            comment=clauses.get("COMMENT"),
            query_offset=0 if query is None else query[1],
            delta=None if lake is None else lake.path,
            when=None if lake is None else lake.when,
            snapshot=without is None,
            remote=remote,
        )

    def _check_remote(
        self, name: Token, without: int | None, elements: tuple[Element, ...], clauses: dict[str, Any]
    ) -> None:
        """An error for what only a table has that keeps rows."""
        if without is not None:
            self.fail("remote_clause", without, table=str(name), clause="WITHOUT SNAPSHOT")
        for _, _, foreign, offset in elements:
            if foreign is not None:
                self.fail("remote_clause", offset, table=str(name), clause="a FOREIGN KEY")
        for clause in ("CLUSTER BY", "WITH"):
            if clauses.get(clause):
                self.fail("remote_clause", name.start_pos, table=str(name), clause=clause)

    def remote(self, source: Token, relation: Clause, log: Options | None) -> RemoteRelation:
        return RemoteRelation(str(source), relation[1], log is not None, log or ())

    @v_args(meta=True, inline=True)
    def remote_log(self, meta: Any, method: CaptureMethod, options: Clause | None = None) -> Options:
        if method.kind != "LOG":
            self.fail("remote_using", meta.start_pos, method=method.kind)
        found: Options = () if options is None else options[1]
        return found

    def from_delta(self, path: Token, frequency: Clause | None = None) -> _FromDelta:
        if not path.strip():
            self.fail("delta_path", path.start_pos)
        if frequency is not None and isinstance(frequency[1], OnCommit | OnDml):
            self.fail("capture_when", frequency[2])
        return _FromDelta(str(path), None if frequency is None else frequency[1])

    def add_columns(self, *elements: Element) -> dict[str, Any]:
        columns = []
        for column, primary, foreign, offset in elements:
            if primary is not None or foreign is not None:
                self.fail("constraint_in_add", offset)
            columns.append(column)
        return {"action": "ADD COLUMNS", "columns": tuple(columns)}

    def add_key(self, element: Element) -> dict[str, Any]:
        _, primary, foreign, offset = element
        if primary is not None:
            self.fail("add_primary_key", offset)
        return {"action": "ADD FOREIGN KEY", "foreign_key": foreign}

    def set_cluster_by(self, columns: tuple[str, ...]) -> dict[str, Any]:
        return {"action": "CLUSTER BY", "cluster_by": columns}

    def rename(self, name: Token) -> dict[str, Any]:
        return {"action": "RENAME", "new_name": str(name)}

    def alter_table(self, name: Token, change: dict[str, Any]) -> statements.AlterTable:
        return statements.AlterTable(str(name), **change)

    def drop_table(self, if_exists: bool | None, name: Token, cascade: bool | None) -> statements.DropTable:
        return statements.DropTable(str(name), bool(if_exists), bool(cascade))

    def compact_table(self, name: Token) -> statements.CompactTable:
        return statements.CompactTable(str(name))

    def retain(self, count: Token, unit: Token) -> str:
        return f"{count} {unit.upper().rstrip('S')}"

    def vacuum(self, name: Token | None, retain: str | None) -> statements.Vacuum:
        return statements.Vacuum(None if name is None else str(name), retain)

    def check_constraints(self, table: Token | None) -> statements.CheckConstraints:
        return statements.CheckConstraints(None if table is None else str(table))
