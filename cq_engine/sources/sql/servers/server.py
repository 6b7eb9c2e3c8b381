"""What is asked of every kind of server, and how databases do it of which nothing more is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.core.errors import SourceError
from cq_engine.sources.sql.address import Options
from cq_engine.sources.sql.model import Index, Relation, SourceColumn, quoted

__all__ = ["PARTS", "Found", "Server", "spark_decimal"]

PARTS = ((1, 15), (16, 15))
"""Which digits of a row's checksum, from 1, are the numbers that the checksum of a range adds up: twice 60 bits."""


@dataclass(frozen=True)
class Found:
    """A relation by its exact name."""

    schema: str | None
    name: str


class Server:
    """A database by SQLAlchemy alone: what needs more of it raises SourceError."""

    extra: ClassVar[str] = ""
    """What has the driver: `cq-engine[extra]`."""
    connect_timeout: ClassVar[bool] = False
    """The driver takes `connect_timeout`, in whole seconds."""
    probe: ClassVar[str] = "SELECT 1"
    """What any account may ask."""
    mark: ClassVar[str] = "%s"
    """What stands for a parameter."""
    row_list: ClassVar[str] = ""
    """What stands in IN (...) around several rows of values, such that an index serves; empty where nothing does."""
    compares_rows: ClassVar[bool] = False
    """An index serves (a, b) > (x, y)."""
    snapshot: ClassVar[str] = ""
    """What gives the name of a transaction's state, in which other connections can read while it is open; empty where none can."""

    @property
    def percent(self) -> str:
        """What stands for a percent sign."""
        return "%" if self.mark == "?" else "%%"

    def __init__(self, name: str, dialect: str) -> None:
        self.name = name
        self.dialect = dialect

    # ------------------------------------------------------------ connections

    def prepare(self, driver: Any, options: Options) -> None:
        """Makes a new connection of the driver ready."""

    def settings(self, options: Options) -> Sequence[str]:
        """What is said on each new connection: text of values must not depend on the server's settings."""
        return ()

    def begin(self, *, writes: bool, compares: bool) -> Sequence[str]:
        """What is said at the beginning of a transaction; with `compares`, of one that writes what it reads (`Database.write`)."""
        return ()

    def limit(self, driver: Any, timeout: float | None) -> None:
        """Gives the statement that comes next on a connection of the driver so many seconds, where the server does not."""

    def share(self, snapshot: str) -> Sequence[str]:
        """What is said first in a transaction that is to read in the state of another one, and waits for no lock for long: who
        waits for the other one to end would be waited for."""
        raise self._cannot("read in the state of another connection")

    # ------------------------------------------------------------ relations

    def find(self, connection: Connection, schema: str | None, name: str) -> Sequence[Found]:
        """The relations of this name, in whatever case; in `schema`, else where the source looks for it."""
        inspected = sa.inspect(connection)
        names = [*inspected.get_table_names(schema), *inspected.get_view_names(schema)]
        return [Found(schema, found) for found in names if found.lower() == name.lower()]

    def names(self, connection: Connection, schema: str | None) -> Sequence[str]:
        """Names of relations, for a hint."""
        inspected = sa.inspect(connection)
        return [*inspected.get_table_names(schema), *inspected.get_view_names(schema)]

    def describe(self, connection: Connection, found: Found) -> Relation:
        """The relation, as it is now."""
        inspected = sa.inspect(connection)
        columns = []
        for column in inspected.get_columns(found.name, found.schema):
            declared = str(column["type"])
            columns.append(
                SourceColumn(column["name"], declared, self.spark(declared), bool(column["nullable"]))
            )
        key = tuple(inspected.get_pk_constraint(found.name, found.schema)["constrained_columns"])
        indexes = [
            Index(str(index["name"]), tuple(map(str, index["column_names"])), bool(index["unique"]))
            for index in inspected.get_indexes(found.name, found.schema)
            if None not in index["column_names"]
        ]
        if key:
            indexes.insert(0, Index("primary key", key, True))
        return Relation(
            self.name, self.dialect, found.name, tuple(columns), found.schema, key, tuple(indexes)
        )

    def result_columns(self, connection: Connection, cursor: Any) -> Sequence[SourceColumn]:
        """The columns of a result, of which a cursor of the driver has a description."""
        return [SourceColumn(str(column[0]), "", "string") for column in cursor.description]

    def spark(self, declared: str) -> str:
        """The type of Spark that has the values of a source's type."""
        from cq_engine.core.types import canonical_type

        try:
            return canonical_type(declared)
        except Exception:  # noqa: BLE001 - any type that Spark does not have
            return "string"

    # ------------------------------------------------------------ SQL

    def read(self, column: SourceColumn, sql: str) -> str:
        """What is selected for a column, whose SQL is given, so that no digit is lost on the way."""
        return sql

    def typed(self, column: SourceColumn, mark: str) -> str:
        """A parameter that is compared with a column, such that an index over it serves."""
        return mark

    def instant(self) -> str:
        """The source's own clock."""
        return "CURRENT_TIMESTAMP"

    def row_checksum(self, columns: Sequence[tuple[SourceColumn, str]]) -> str:
        """A checksum of a row, over a text of which two differ where the values do, NULL and empty text among them."""
        raise self._cannot("compute checksums")

    def range_checksum(self, columns: Sequence[tuple[SourceColumn, str]], source: str) -> str:
        """How many rows `source`, a FROM with its WHERE, has, and a checksum of them, whatever their order: what stands
        after SELECT."""
        raise self._cannot("compute checksums")

    def keys_in(self, columns: Sequence[tuple[SourceColumn, str]], rows: Sequence[Sequence[str]]) -> str:
        """A condition: the columns have the values of one of the rows, each given as SQL."""
        if len(columns) == 1:
            return f"{columns[0][1]} IN ({', '.join(row[0] for row in rows)})"
        if self.row_list:
            values = ", ".join(f"({', '.join(row)})" for row in rows)
            return f"({', '.join(sql for _, sql in columns)}) IN ({self.row_list.format(values)})"
        each = (" AND ".join(f"{sql} = {value}" for (_, sql), value in zip(columns, row)) for row in rows)
        return "(" + " OR ".join(f"({row})" for row in each) + ")"

    def unnested(self, column: SourceColumn, mark: str) -> str:
        """A query for the values of a list that is one parameter, compared with a column; empty where a server takes no lists."""
        return ""

    def after(self, columns: Sequence[tuple[SourceColumn, str]], values: Sequence[str]) -> str:
        """A condition: the columns together come after the values, written so that an index finds the first one."""
        if self.compares_rows:
            return f"({', '.join(sql for _, sql in columns)}) > ({', '.join(values)})"
        return _compared(columns, values, ">", ">")

    def up_to(self, columns: Sequence[tuple[SourceColumn, str]], values: Sequence[str]) -> str:
        """A condition: the columns together are at most the values."""
        if self.compares_rows:
            return f"({', '.join(sql for _, sql in columns)}) <= ({', '.join(values)})"
        return _compared(columns, values, "<", "<=")

    # ------------------------------------------------------------ plans

    def explain(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> list[str]:
        """The plan of a statement in lines."""
        raise self._cannot("explain its plans to us")

    def reads_only_index(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> bool:
        """Whether the plan has all that it needs from indexes, and does not touch a table."""
        raise self._cannot("explain its plans to us")

    def _cannot(self, what: str) -> SourceError:
        return SourceError(
            f"a database of {self.name} cannot {what}", hint="SQLite, PostgreSQL and MariaDB can"
        )

    def quoted(self, name: str) -> str:
        """A name in the server's SQL."""
        return quoted(name, self.dialect)


def _compared(
    columns: Sequence[tuple[SourceColumn, str]], values: Sequence[str], strict: str, last: str
) -> str:
    """Row by row as SQL-92 has it, with a condition in front that bounds the first column for every optimizer."""
    sqls = [sql for _, sql in columns]
    cases = []
    for n, sql in enumerate(sqls):
        sign = last if n == len(sqls) - 1 else strict
        equal = [f"{sqls[m]} = {values[m]}" for m in range(n)]
        cases.append(" AND ".join([*equal, f"{sql} {sign} {values[n]}"]))
    if len(cases) == 1:
        return cases[0]
    return f"({sqls[0]} {strict}= {values[0]} AND ({' OR '.join(f'({case})' for case in cases)}))"


def spark_decimal(declared: str) -> str:
    """DECIMAL as Spark has it, for a type with or without digits: without, there are 18 after the point.

    >>> spark_decimal("numeric(10,2)"), spark_decimal("numeric"), spark_decimal("decimal(65,10)")
    ('decimal(10,2)', 'decimal(38,18)', 'decimal(38,10)')
    """
    found = re.search(r"\((\d+)(?:\s*,\s*(\d+))?\)", declared)
    if found is None:
        return "decimal(38,18)"
    precision, scale = min(38, int(found[1])), min(38, int(found[2] or 0))
    return f"decimal({max(precision, scale, 1)},{scale})"
