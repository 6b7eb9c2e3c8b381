"""CHECK CONSTRAINTS: are the keys that plans rely on true of the present rows?"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cq_engine.catalog import apply
from cq_engine.catalog.model import ForeignKey, Table
from cq_engine.catalog.names import check_here
from cq_engine.context.services import Services
from cq_engine.core.columns import INTERNAL
from cq_engine.core.errors import ConstraintError
from cq_engine.query.query import query_frame
from cq_engine.query.result import Result
from cq_engine.spark.sql import quote

__all__ = ["check_added_key", "check_constraints"]


def check_constraints(services: Services, table: str | None) -> Result:
    """One row per constraint of `table` (default: of all tables): its table, its text, how many rows violate it.

    Columns: `table` STRING, `constraint` STRING, `violations` BIGINT, `example` STRING.
    """
    state = services.catalog.state
    tables = sorted((t for t in state.tables.values() if t.remote is None), key=lambda t: t.name)
    if table:
        tables = [apply.find_table(state, table)]
        check_here(tables[0], "CHECK CONSTRAINTS")
    found: list[tuple[str, str, int, str]] = []
    for each in tables:
        if each.primary_key is not None:
            found.append(_primary_key(services, each, each.primary_key))
        found += [_foreign_key(services, each, key) for key in each.foreign_keys]
    names = ("table", "constraint", "violations", "example")
    types = (pa.string(), pa.string(), pa.int64(), pa.string())
    columns = list(zip(*found)) or [(), (), (), ()]
    return Result(arrow=pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types)}))


def check_added_key(services: Services, table: Table) -> None:
    """Raises ConstraintError where the rows of `table` violate its last foreign key, which is to be enforced."""
    key = table.foreign_keys[-1]
    _, name, violations, example = _foreign_key(services, table, key)
    if violations:
        raise ConstraintError(
            f"{violations} rows of {table.name} violate {name}",
            detail=f"for example {example}",
            hint=f"correct them, or add the key NOT ENFORCED; CHECK CONSTRAINTS ON {table.name} counts them",
        )


def _primary_key(services: Services, table: Table, key: Sequence[str]) -> tuple[str, str, int, str]:
    keys = ", ".join(map(quote, key))
    missing = " OR ".join(f"{quote(k)} IS NULL" for k in key)
    text = f"SELECT {keys} FROM {quote(table.name)} GROUP BY {keys} HAVING count(*) > 1 OR {missing}"
    return (table.name, f"PRIMARY KEY ({', '.join(key)})", *_count(services, text))


def _foreign_key(services: Services, table: Table, key: ForeignKey) -> tuple[str, str, int, str]:
    # In the subquery a column of the parent would hide an alias of the same name.
    child, parent = f"{INTERNAL}child", f"{INTERNAL}parent"
    on = " AND ".join(
        f"{child}.{quote(a)} = {parent}.{quote(b)}" for a, b in zip(key.columns, key.ref_columns)
    )
    there = " AND ".join(f"{child}.{quote(a)} IS NOT NULL" for a in key.columns)
    shown = ", ".join(f"{child}.{quote(a)}" for a in key.columns)
    text = (
        f"SELECT {shown} FROM {quote(table.name)} AS {child} WHERE {there}"
        f" AND NOT EXISTS (SELECT 1 FROM {quote(key.references)} AS {parent} WHERE {on})"
    )
    name = (
        f"FOREIGN KEY ({', '.join(key.columns)}) REFERENCES {key.references} ({', '.join(key.ref_columns)})"
    )
    return (table.name, name, *_count(services, text))


def _count(services: Services, text: str) -> tuple[int, str]:
    frame = query_frame(services, text)
    count = frame.count()
    example = str(tuple(frame.limit(1).collect()[0])) if count else ""
    return count, example
