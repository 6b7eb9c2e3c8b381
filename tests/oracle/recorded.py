"""A history replayed in DuckDB: what each commit left, for oracles and for delta plans alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from tests.oracle.generate import History, TableSpec
from tests.oracle.law import Row, row_of

__all__ = ["Recorded", "record"]


@dataclass
class Image:
    """A table's rows after a commit, each with an identity that is stable across commits."""

    rows: dict[Any, Row] = field(default_factory=dict)


@dataclass
class Recorded:
    """The transactions that took place (version 1 is the initial load), the images and the results after each.

    `changes[table]` are (row, identity, change type, version), as a change log has them.
    """

    history: History
    transactions: list[tuple[str, ...]]
    images: list[dict[str, Image]]
    results: list[list[list[Row]]]
    changes: dict[str, list[tuple[Row, Any, str, int]]]
    columns: list[list[tuple[str, str]]]

    @property
    def newest(self) -> int:
        return len(self.transactions)


def record(history: History) -> Recorded:
    """Runs the history. A statement that would break a primary key is left out of it."""
    base = duckdb.connect()
    base.execute("SET threads = 1")
    base.execute("PRAGMA disable_optimizer")
    for table in history.tables:
        base.execute(table.ddl(False))
    found = Recorded(history, [], [{t.name: Image() for t in history.tables}], [], defaultdict(list), [])
    found.columns = [
        [(d[0], str(d[1])) for d in base.execute(f"DESCRIBE {q}").fetchall()] for q in history.queries
    ]
    found.results.append(_results(base, history))
    for number, statements in enumerate((history.initial, *history.transactions)):
        kept = [s for s in statements if _goes(base, history.tables, s)]
        images = {t.name: _next_image(base, t, found, len(found.transactions) + 1) for t in history.tables}
        same = all(images[t].rows == found.images[-1][t].rows for t in images)
        if number and (not kept or same):
            continue
        found.transactions.append(tuple(kept))
        found.images.append(images)
        found.results.append(_results(base, history))
    base.close()
    return found


def _results(base: duckdb.DuckDBPyConnection, history: History) -> list[list[Row]]:
    return [[row_of(r) for r in base.execute(q).fetchall()] for q in history.queries]


def _goes(base: duckdb.DuckDBPyConnection, tables: Sequence[TableSpec], statement: str) -> bool:
    """Runs a statement, unless a primary key would not hold behind it."""
    base.execute("BEGIN")
    base.execute(statement)
    for table in tables:
        if not table.key:
            continue
        key = ", ".join(table.key)
        nulls = " OR ".join(f"{k} IS NULL" for k in table.key)
        twice = f"SELECT 1 FROM {table.name} GROUP BY {key} HAVING count(*) > 1 OR bool_or({nulls})"
        if base.execute(twice).fetchone():
            base.execute("ROLLBACK")
            return False
    base.execute("COMMIT")
    return True


def _next_image(base: duckdb.DuckDBPyConnection, table: TableSpec, found: Recorded, version: int) -> Image:
    """The table's rows now; the difference to the image before goes to the change log."""
    before = found.images[-1][table.name].rows
    names = [n for n, _ in table.columns]
    rows = [row_of(r) for r in base.execute(f"SELECT * FROM {table.name}").fetchall()]
    if table.key:
        places = [names.index(k) for k in table.key]
        after = {tuple(r[p] for p in places): r for r in rows}
    else:
        after = _identified(before, rows, version)
    log = found.changes[table.name]
    for identity in sorted(before.keys() | after.keys(), key=repr):
        old, new = before.get(identity), after.get(identity)
        if old == new:
            continue
        kinds = (
            ("delete", "insert") if old is None or new is None else ("update_preimage", "update_postimage")
        )
        log += [(r, identity, kind, version) for r, kind in zip((old, new), kinds) if r is not None]
    return Image(after)


def _identified(before: dict[Any, Row], rows: Sequence[Row], version: int) -> dict[Any, Row]:
    """Identities for a keyless table: rows that were there keep theirs, others take those of rows that left."""
    left = Counter(rows)
    after: dict[Any, Row] = {}
    free = []
    for identity, row in before.items():
        if left[row] > 0:
            left[row] -= 1
            after[identity] = row
        else:
            free.append(identity)
    for number, row in enumerate(sorted(left.elements(), key=repr)):
        after[free.pop(0) if free else 1000 * version + number] = row
    return after
