"""Random tables, and a model of what they hold: plain lists of rows, in Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.adversary.kinds import KEY_KINDS, KINDS, PLAIN, SPECIAL, canonical
from tests.oracle.expressions import INT
from tests.oracle.generate import TableSpec

__all__ = ["Model", "Reference", "Row", "Table", "random_tables"]

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Reference:
    """A foreign key; `promise` is ENFORCED, RELY or nothing. `there`: what its columns are called in the other table."""

    columns: tuple[str, ...]
    table: str
    promise: str
    named: tuple[str, ...] = ()

    @property
    def there(self) -> tuple[str, ...]:
        return self.named or self.columns

    @property
    def sql(self) -> str:
        mine, theirs = ", ".join(self.columns), ", ".join(self.there)
        return f"FOREIGN KEY ({mine}) REFERENCES {self.table} ({theirs}) {self.promise}"


@dataclass(frozen=True)
class Table(TableSpec):
    """A table with its foreign keys. A key's column has the same name in another table that refers to it.

    `added` are columns that it got later; rows that were there have NULL in them.
    """

    references: tuple[Reference, ...] = ()
    added: tuple[str, ...] = ()

    def create(self) -> str:
        shown = [f"{name} {kind}" for name, kind in self.columns]
        if self.key:
            shown.append(f"PRIMARY KEY ({', '.join(self.key)})")
        shown += [reference.sql for reference in self.references]
        return f"CREATE TABLE {self.name} ({', '.join(shown)})"

    @property
    def kinds(self) -> list[str]:
        return [kind for _, kind in self.columns]

    @property
    def to_itself(self) -> Reference | None:
        """The foreign key to the table itself."""
        return next((r for r in self.references if r.table == self.name), None)

    @property
    def links(self) -> list[str]:
        """The columns of that key which may change alone, and may be NULL."""
        return [c for c in self.to_itself.columns if c not in self.key] if self.to_itself else []

    def place(self, column: str) -> int:
        return next(i for i, (name, _) in enumerate(self.columns) if name == column)

    def values(self, row: Row, columns: Sequence[str]) -> Row:
        return tuple(canonical(row[self.place(c)]) for c in columns)

    def to_arrow(self, rows: Sequence[Row]) -> pa.Table:
        fields = [pa.field(name, KINDS[kind].arrow) for name, kind in self.columns]
        columns = list(zip(*rows)) if rows else [()] * len(fields)
        arrays = [pa.array(column, f.type) for column, f in zip(columns, fields)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def random_tables(chosen: random.Random, allowed: Collection[str] = KINDS) -> tuple[Table, ...]:
    """Three or four tables: a parent, one or two that refer to those before them, and one that may have no key."""
    plain, special, keys = (tuple(k for k in kinds if k in allowed) for kinds in (PLAIN, SPECIAL, KEY_KINDS))
    made: list[Table] = []
    for number in range(1, chosen.choice((3, 3, 4)) + 1):
        parents = [t for t in made if t.key and chosen.random() < 0.6][:2]
        columns: list[tuple[str, str]] = []
        references = []
        for parent in parents:
            inherited = [(n, k) for n, k in parent.columns if n in parent.key]
            columns += [c for c in inherited if c not in columns]
            promise = chosen.choice(("ENFORCED", "ENFORCED", "NOT ENFORCED RELY", ""))
            references.append(Reference(tuple(n for n, _ in inherited), parent.name, promise))
        key = _key(chosen, keys, number, columns)
        columns += [(n, k) for n, k in key if (n, k) not in columns]
        kinds = [INT, *(chosen.choice(plain) for _ in range(chosen.choice((1, 1, 2))))]
        kinds += [chosen.choice(special) for _ in range(chosen.choice((0, 1, 1, 2)))]
        columns += [(f"{'abcdefg'[i]}", kind) for i, kind in enumerate(kinds)]
        made.append(Table(f"t{number}", tuple(columns), tuple(n for n, _ in key), tuple(references)))
    return tuple(made)


def _key(
    chosen: random.Random, kinds: Sequence[str], number: int, inherited: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """A column of its own; one more, or the one of a parent; or none."""
    if number > 2 and chosen.random() < 0.35:
        return []
    own = [(f"k{number}", chosen.choice(kinds))]
    if inherited and chosen.random() < 0.4:
        return [inherited[0], *own] if chosen.random() < 0.8 else list(inherited[:1])
    return [*own, (f"m{number}", chosen.choice(kinds))] if chosen.random() < 0.2 else own


@dataclass
class Model:
    """What the tables hold."""

    tables: tuple[Table, ...]
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in self.tables:
            self.rows.setdefault(table.name, [])

    def copy(self) -> Model:
        return Model(self.tables, {name: list(rows) for name, rows in self.rows.items()})

    def bag(self, name: str) -> Counter[Row]:
        return Counter(tuple(map(canonical, row)) for row in self.rows[name])

    def same_as(self, other: Model) -> bool:
        return all(self.bag(t.name) == other.bag(t.name) for t in self.tables)

    def widen(self, wide: Table) -> None:
        """The table has more columns, at the end, with NULL in all rows."""
        narrow = next(t for t in self.tables if t.name == wide.name)
        more = (None,) * (len(wide.columns) - len(narrow.columns))
        self.tables = tuple(wide if t is narrow else t for t in self.tables)
        self.rows[wide.name] = [(*row, *more) for row in self.rows[wide.name]]

    def violations(self) -> Iterator[str]:
        """The promises of constraints that do not hold: 'ENFORCED' (a commit must be refused) or what else it says."""
        for table in self.tables:
            keys = [table.values(row, table.key) for row in self.rows[table.name]] if table.key else []
            if len(set(keys)) < len(keys) or any(None in key for key in keys):
                yield "ENFORCED"
            for reference in table.references:
                if reference.promise and not self._refers(table, reference):
                    yield reference.promise

    def _refers(self, table: Table, reference: Reference) -> bool:
        parent = next(t for t in self.tables if t.name == reference.table)
        there = {parent.values(row, reference.there) for row in self.rows[parent.name]}
        wanted = {table.values(row, reference.columns) for row in self.rows[table.name]}
        return all(None in key or key in there for key in wanted)
