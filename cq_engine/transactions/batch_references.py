"""ENFORCED foreign keys inside of a batch of changes: plans rely on them at every commit, not only after the last one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import functions as f

from cq_engine.catalog.model import CatalogState, ForeignKey, Table
from cq_engine.context.services import Services
from cq_engine.core.arrays import distinct
from cq_engine.core.errors import ConstraintError
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.file_look_ups import restriction
from cq_engine.storage.identities import combinations
from cq_engine.storage.rows import conform, identity_columns, identity_keys
from cq_engine.transactions.replay import Log

__all__ = ["check_within"]

_END = 2**63
_Span = tuple[int, int]
"""Versions [first, after)."""


def check_within(services: Services, state: CatalogState, logs: Mapping[str, Log], first: int) -> None:
    """Checks the foreign keys between the commits of a batch; what holds after the last one was checked before.

    `logs` are the changes by table name, `first` is the first commit's version. Raises ConstraintError.
    """
    if len({version for log in logs.values() for version in distinct(log.events.version).tolist()}) < 2:
        return
    for child in state.tables.values():
        for key in child.foreign_keys:
            parent = state.tables.get(key.references.lower())
            if key.enforced and parent is not None and {child.name, parent.name} & logs.keys():
                _check(services, child, parent, key, logs, first)


def _check(
    services: Services, child: Table, parent: Table, key: ForeignKey, logs: Mapping[str, Log], first: int
) -> None:
    absent = _absences(logs[parent.name], parent, key.ref_columns, first) if parent.name in logs else {}
    passing: dict[Hashable, int] = {}
    """Referred to by rows that come and go, where the batch does not change the parent: one such row's position."""
    touched: set[Hashable] = set()
    if child.name in logs:
        log = logs[child.name]
        rows = identity_keys(log.rows, identity_columns(child.storage))
        touched = {rows[max(before, after)] for before, after, _ in log.events}
        wanted = _keys(log.rows, child, key.columns)
        for at, (start, end) in _lives(log, child, first):
            value = wanted[at]
            if value is None or (isinstance(value, tuple) and None in value):
                continue
            if any(max(start, gone) < min(end, back) for gone, back in absent.get(value, ())):
                raise _error(child, key, value)
            if value not in absent and start >= first and end < _END:
                passing[value] = at
        _check_passing(services, parent, key, log.rows, child, passing)
    back = [value for value, spans in absent.items() if any(end < _END for _, end in spans)]
    if back:
        _check_waiting(services, child, key, logs[parent.name], parent, set(back), touched)


def _keys(rows: pa.Table, table: Table, columns: Sequence[str]) -> list[Hashable]:
    kinds = {c.name: c for c in table.storage.physical_columns}
    return identity_keys(rows, [kinds[name] for name in columns])


def _absences(log: Log, table: Table, columns: Sequence[str], first: int) -> dict[Hashable, list[_Span]]:
    """When the rows that the batch changes are not there, by `columns`; all of them have an entry."""
    keys = _keys(log.rows, table, columns)
    found: dict[Hashable, list[_Span]] = {}
    gone: dict[Hashable, int] = {}
    for before, after, version in log.events:
        value = keys[max(before, after)]
        spans = found.setdefault(value, [])
        if before < 0:
            spans.append((gone.pop(value, first), version))
        if after < 0:
            gone[value] = version
    for value, version in gone.items():
        found[value].append((version, _END))
    return found


def _lives(log: Log, table: Table, first: int) -> Iterator[tuple[int, _Span]]:
    """The images of the rows that the batch changes, as positions in `log.rows`, and when they are there."""
    keys = identity_keys(log.rows, identity_columns(table.storage))
    chains: dict[Hashable, list[tuple[int, int, int]]] = {}
    for before, after, version in log.events:
        chains.setdefault(keys[max(before, after)], []).append((version, before, after))
    for steps in chains.values():
        steps.sort()
        version, before, _ = steps[0]
        if before >= 0:
            yield before, (first - 1, version)
        for (version, _, after), later in zip(steps, [*(step[0] for step in steps[1:]), _END]):
            if after >= 0:
                yield after, (version, later)


def _check_passing(
    services: Services,
    parent: Table,
    key: ForeignKey,
    rows: pa.Table,
    child: Table,
    wanted: Mapping[Hashable, int],
) -> None:
    """The parents that the batch does not change are there, or they are not there at any of its commits."""
    if not wanted:
        return
    picked = rows.take(pa.array(list(wanted.values()), pa.int64())).select(list(key.columns))
    there = set(_keys(_having(services, parent, key.ref_columns, picked), parent, key.ref_columns))
    missing = next((value for value in wanted if value not in there), None)
    if missing is not None:
        raise _error(child, key, missing)


def _check_waiting(
    services: Services,
    child: Table,
    key: ForeignKey,
    log: Log,
    parent: Table,
    back: set[Hashable],
    touched: set[Hashable],
) -> None:
    """No row that the batch does not change refers to a parent that is not there for some commits."""
    keys = _keys(log.rows, parent, key.ref_columns)
    places = {value: at for at, value in enumerate(keys) if value in back}
    picked = log.rows.take(pa.array(list(places.values()), pa.int64())).select(list(key.ref_columns))
    # Where the table has more of them than the batch changes, one of them is not among those.
    rows = _having(services, child, key.columns, picked, len(touched) + 1)
    mine = identity_keys(rows, identity_columns(child.storage))
    for row, value in zip(mine, _keys(rows, child, key.columns)):
        if row not in touched and value in back:
            raise _error(child, key, value)


def _having(
    services: Services, table: Table, columns: Sequence[str], values: pa.Table, most: int | None = None
) -> pa.Table:
    """The rows before the batch that have one of the values in `columns`, and maybe others: one row for each value, or, of a
    table that the driver does not look into, `most` of the rows that have one."""
    reader, newest = services.reader, services.catalog.newest_version
    physical = table.storage.physical_columns
    kinds = [next(c for c in physical if c.name == name) for name in columns]
    values = conform(values.rename_columns(list(columns)), kinds)
    restrict, choose = restriction(values, kinds), combinations(values, kinds)
    rows = reader.restricted_image(table.storage, newest, restrict, choose)
    if rows is not None:
        return rows
    image = reader.image(table.storage, newest, restrict)
    wanted = reader.frame(values, kinds).toDF(*(f"_cq_w{n}" for n in range(len(kinds))))
    on = [f.col(quote(name)) == f.col(f"_cq_w{n}") for n, name in enumerate(columns)]
    found = image.join(wanted, on, "left_semi")
    found = found.dropDuplicates(list(columns)) if most is None else found.limit(most)
    return conform(to_arrow(found), physical)


def _error(child: Table, key: ForeignKey, value: Hashable) -> ConstraintError:
    values: Iterable[object] = value if isinstance(value, tuple) else (value,)
    shown = ", ".join(f"{name} = {each!r}" for name, each in zip(key.columns, values))
    return ConstraintError(
        f"FOREIGN KEY {key.name} of table {child.name} does not hold at every commit of the batch",
        detail=f"for a while there is no row in {key.references} for ({shown})",
        hint="changes that belong together have one value of `transaction`; nothing of the batch was applied",
    )
