"""PRIMARY KEY, NOT NULL and ENFORCED FOREIGN KEY, checked on the net change of a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.model import CatalogState, ForeignKey, Table
from cq_engine.context.services import Services
from cq_engine.context.staging import SIGN
from cq_engine.core.arrays import is_in
from cq_engine.core.columns import Column
from cq_engine.core.errors import ConstraintError
from cq_engine.core.values import python_rows
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.file_look_ups import restriction
from cq_engine.storage.identities import Identities, combinations
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import conform, empty
from cq_engine.transactions import bulk
from cq_engine.transactions.staged_keys import repeated_keys
from cq_engine.transactions.write_set import BulkPending, Net, SmallPending

__all__ = ["Change", "check", "check_foreign_keys", "check_not_null", "required_columns"]

SHOWN = 3
"""Offending rows that a message names."""
_COUNT = "_cq_count"


@dataclass(frozen=True)
class Change:
    """The net change of one table: `net` on the driver, or `signed` rows in Spark."""

    table: Table
    pending: SmallPending | BulkPending
    net: Net | None = None
    signed: DataFrame | None = None
    duplicates: pa.Table | None = None

    def frame(self, reader: Reader) -> DataFrame:
        """The signed rows as a DataFrame."""
        return self.signed if self.signed is not None else bulk.sign(reader, self.pending)

    def added_rows(self, reader: Reader) -> DataFrame:
        return self.frame(reader).where(f.col(SIGN) > 0)

    def removed_rows(self, reader: Reader) -> DataFrame:
        return self.frame(reader).where(f.col(SIGN) < 0)


def check(services: Services, state: CatalogState, changes: Mapping[str, Change]) -> None:
    """Checks every constraint that the changes touch, against the newest commit. Raises ConstraintError."""
    for change in changes.values():
        table = state.tables[change.table.name.lower()]
        _check_nulls(services, table, change)
        if table.primary_key is not None and table.primary_key_enforced:
            _check_unique(services, table, change)
    check_foreign_keys(services, state, changes)


def check_foreign_keys(services: Services, state: CatalogState, changes: Mapping[str, Change]) -> None:
    """Checks the ENFORCED foreign keys alone. Raises ConstraintError."""
    for child in state.tables.values():
        for key in child.foreign_keys:
            parent = state.tables.get(key.references.lower())
            if key.enforced and parent is not None:
                _check_foreign_key(services, child, parent, key, changes)


def check_not_null(table: Table, rows: pa.Table) -> None:
    """Raises ConstraintError where a NOT NULL or key column of `rows` is NULL."""
    for name in required_columns(table):
        column = rows.column(name)
        if column.null_count:
            at = pc.index(column.is_null(), pa.scalar(True)).as_py()
            raise _null_error(table, name, python_rows(rows.slice(at, 1))[0])


def required_columns(table: Table) -> list[str]:
    """The columns that are never NULL."""
    keys = table.primary_key if table.primary_key is not None and table.primary_key_enforced else ()
    lower = {name.lower() for name in keys or ()}
    return [c.name for c in table.columns if not c.nullable or c.name.lower() in lower]


def _null_error(table: Table, name: str, row: Mapping[str, object]) -> ConstraintError:
    shown = ", ".join(f"{k} = {v!r}" for k, v in row.items() if not k.startswith("_"))
    part = "PRIMARY KEY" if table.primary_key and name in table.primary_key else "NOT NULL"
    return ConstraintError(
        f"column {table.name}.{name} must not be NULL ({part})",
        detail=f"the row is ({shown})",
        hint=f"give a value for {name}",
    )


def _check_nulls(services: Services, table: Table, change: Change) -> None:
    if change.net is not None:
        check_not_null(table, change.net.added_rows())
        return
    required = required_columns(table)
    if not required:
        return
    rows = change.added_rows(services.reader)
    missing = reduce(lambda a, b: a | b, (f.col(quote(name)).isNull() for name in required))
    found = to_arrow(rows.where(missing).limit(1).drop(SIGN))
    if found.num_rows:
        check_not_null(table, found)


# ---------------------------------------------------------------- PRIMARY KEY


def _check_unique(services: Services, table: Table, change: Change) -> None:
    if change.net is None:
        _check_unique_bulk(services, table, change)
        return
    if change.duplicates is not None and change.duplicates.num_rows:
        raise _duplicate(table, change.duplicates, "the transaction gives several rows with this key")
    inserted = change.net.inserted
    if inserted.num_rows:
        newest = services.catalog.newest_version
        found = services.reader.lookup(table.storage, newest, inserted.select(list(table.storage.identity)))
        if found.num_rows:
            raise _duplicate(table, found, "a row with this key exists already")


def _check_unique_bulk(services: Services, table: Table, change: Change) -> None:
    keys = [quote(name) for name in table.storage.identity]
    added = change.added_rows(services.reader).select(*keys)
    twice = None
    if isinstance(change.pending, BulkPending) and not change.pending.signed:
        twice = repeated_keys(services.reader, table.storage, change.pending.plain, SHOWN)
    if twice is None:
        counted = added.groupBy(*keys).agg(f.count("*").alias(_COUNT)).where(f"{_COUNT} > 1")
        twice = to_arrow(counted.limit(SHOWN).drop(_COUNT))
    if twice.num_rows:
        raise _duplicate(table, twice, "the rows hold this key several times")
    newest = services.catalog.newest_version
    layout = services.catalog.layout(table.storage.id, newest)
    if not layout.snapshot and not layout.changes:
        return
    fresh = added
    if isinstance(change.pending, SmallPending) or change.pending.signed:
        fresh = bulk.hide(table, added, change.removed_rows(services.reader))
    image = services.reader.image(table.storage, newest).select(*keys).alias("i")
    on = [f.col(f"n.{key}").eqNullSafe(f.col(f"i.{key}")) for key in keys]
    found = to_arrow(fresh.alias("n").join(image, on, "left_semi").limit(SHOWN))
    if found.num_rows:
        raise _duplicate(table, found, "a row with this key exists already")


def _duplicate(table: Table, rows: pa.Table, why: str) -> ConstraintError:
    keys = list(table.storage.identity)
    values = "; ".join(_show_row(row, keys) for row in python_rows(rows.select(keys).slice(0, SHOWN)))
    return ConstraintError(
        f"PRIMARY KEY of table {table.name} would be violated by {values}",
        detail=why,
        hint="UPDATE or MERGE changes a row that is there; DELETE it first to replace it",
    )


def _show_row(row: Mapping[str, object], names: Sequence[str]) -> str:
    return "(" + ", ".join(f"{name} = {row[name]!r}" for name in names) + ")"


# ---------------------------------------------------------------- FOREIGN KEY


def _check_foreign_key(
    services: Services, child: Table, parent: Table, key: ForeignKey, changes: Mapping[str, Change]
) -> None:
    mine, theirs = key.columns, key.ref_columns or parent.primary_key or ()
    of_child, of_parent = changes.get(child.name), changes.get(parent.name)
    if of_child is not None:
        if of_child.net is not None:
            wanted = of_child.net.added_rows().select(list(mine)).drop_null()
            missing = _missing(services, parent, theirs, conform(wanted, _kinds(child, mine)), of_parent)
        else:
            added = _values(of_child.added_rows(services.reader), mine)
            missing = _first(_matching(services, added, parent, theirs, of_parent, "left_anti"))
        if missing is not None:
            raise ConstraintError(
                f"FOREIGN KEY {key.name} of table {child.name} has no row in {parent.name}"
                f" for {_show_row(dict(zip(mine, missing)), mine)}",
                hint=f"insert the row into {parent.name} in the same transaction or before",
            )
    if of_parent is not None:
        if of_parent.net is not None:
            gone = conform(
                of_parent.net.removed_rows().select(list(theirs)).drop_null(), _kinds(parent, theirs)
            )
            lost = _absent(services, parent, theirs, gone, of_parent)
            used = _present(services, child, mine, lost, of_child)
        else:
            removed = _values(of_parent.removed_rows(services.reader), theirs)
            left = _matching(services, removed, parent, theirs, of_parent, "left_anti")
            used = _first(_matching(services, left, child, mine, of_child, "left_semi"))
        if used is not None:
            raise ConstraintError(
                f"rows of {child.name} still refer to the row {_show_row(dict(zip(theirs, used)), theirs)} of {parent.name}"
                f" (FOREIGN KEY {key.name})",
                hint=f"delete or change the rows of {child.name} first",
            )


def _values(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The distinct values of `columns`, without NULL, which may be too many for the driver."""
    picked = rows.select(*(f.col(quote(name)).alias(f"_cq_w{n}") for n, name in enumerate(columns)))
    return picked.dropna().distinct()


def _matching(
    services: Services,
    values: DataFrame,
    table: Table,
    columns: Sequence[str],
    change: Change | None,
    how: str,
) -> DataFrame:
    """The values that a row of the table has after the commit (`left_semi`), or that none has (`left_anti`)."""
    reader = services.reader
    image = reader.image(table.storage, services.catalog.newest_version)
    rows = image if change is None else bulk.overlay(reader, image, change.pending)
    renamed = rows.select(*(f.col(quote(name)).alias(f"_cq_r{n}") for n, name in enumerate(columns)))
    on = [f.col(f"_cq_w{n}") == f.col(f"_cq_r{n}") for n in range(len(columns))]
    return values.join(renamed, on, how)


def _first(rows: DataFrame) -> tuple[object, ...] | None:
    return next((tuple(row.values()) for row in python_rows(to_arrow(rows.limit(1)))), None)


def _missing(
    services: Services, table: Table, columns: Sequence[str], wanted: pa.Table, change: Change | None
) -> tuple[object, ...] | None:
    """One of the wanted values that no row of the table will have, or None."""
    absent = _absent(services, table, columns, wanted.rename_columns(list(columns)), change)
    return tuple(python_rows(absent.slice(0, 1))[0].values()) if absent.num_rows else None


def _absent(
    services: Services, table: Table, columns: Sequence[str], wanted: pa.Table, change: Change | None
) -> pa.Table:
    if not wanted.num_rows:
        return wanted
    return wanted.filter(pa.array(~_held(services, table, columns, wanted, change)))


def _present(
    services: Services, table: Table, columns: Sequence[str], wanted: pa.Table, change: Change | None
) -> tuple[object, ...] | None:
    """One of the wanted values that some row of the table will have, or None."""
    if not wanted.num_rows:
        return None
    wanted = wanted.rename_columns(list(columns))
    found = wanted.filter(pa.array(_held(services, table, columns, wanted, change)))
    return next((tuple(row.values()) for row in python_rows(found.slice(0, 1))), None)


def _held(
    services: Services, table: Table, columns: Sequence[str], wanted: pa.Table, change: Change | None
) -> npt.NDArray[np.bool_]:
    """Which of the wanted values some row of the table will have."""
    values = Identities(wanted, _kinds(table, columns))
    return is_in(values.numbers, values.find(_after(services, table, columns, wanted, change)))


def _kinds(table: Table, names: Sequence[str]) -> list[Column]:
    return [next(c for c in table.columns if c.name == name) for name in names]


def _after(
    services: Services, table: Table, columns: Sequence[str], wanted: pa.Table, change: Change | None
) -> pa.Table:
    """At least the rows after the commit that have one of the wanted values."""
    reader, newest = services.reader, services.catalog.newest_version
    physical = table.storage.physical_columns
    kinds = _kinds(table, columns)
    restrict, choose = restriction(wanted, kinds), combinations(wanted, kinds)
    pending = change.pending if change is not None else None
    if not isinstance(pending, BulkPending):
        rows = reader.restricted_image(table.storage, newest, restrict, choose)
        if rows is not None:
            return rows if pending is None else pending.overlay(rows)
    image = reader.image(table.storage, newest)
    if pending is not None:
        image = bulk.overlay(reader, image, pending)
    kept = [c for c in physical if c.name in columns]
    renamed = {c.name: f"_cq_w{n}" for n, c in enumerate(kept)}
    keys = reader.frame(wanted, kept).withColumnsRenamed(renamed)
    on = [f.col(quote(name)) == f.col(other) for name, other in renamed.items()]
    found = to_arrow(image.join(keys, on, "left_semi").select(*(quote(name) for name in columns)).distinct())
    return conform(found, kept) if found.num_rows else empty(kept)
