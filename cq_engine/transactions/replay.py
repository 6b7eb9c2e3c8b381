"""Replay of one table's changes: every row's chain of images becomes one net change per source transaction.

All chains are followed at once, in NumPy: changes are sorted by row and time, and what a change finds is what the one
before it has left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.model import Table
from cq_engine.context.services import Services
from cq_engine.core.arrays import group_starts, sort_places
from cq_engine.core.errors import ConstraintError
from cq_engine.core.values import python_rows
from cq_engine.storage.identities import Identities, Numbers, find_places
from cq_engine.storage.rows import conform, empty, identity_columns, same_images
from cq_engine.transactions.change_batches import Batch, Operation
from cq_engine.transactions.write_set import Net

__all__ = ["NEEDS", "Events", "Log", "replay", "step_error"]


@dataclass(frozen=True)
class Events:
    """Net changes of one table in the order of the commits: positions in a table of rows, -1 where there is no row."""

    before: Numbers
    after: Numbers
    version: Numbers
    key: Numbers
    """Equal for changes of one row."""

    def __len__(self) -> int:
        return len(self.before)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Before, after and version of each."""
        return zip(self.before.tolist(), self.after.tolist(), self.version.tolist())

    def take(self, places: Numbers | npt.NDArray[np.bool_]) -> Events:
        return Events(self.before[places], self.after[places], self.version[places], self.key[places])


@dataclass(frozen=True)
class Log:
    """Rows, and the net changes among them."""

    rows: pa.Table
    events: Events

    def without_no_ops(self) -> Log:
        """Drops updates whose rows are equal."""
        updates = np.flatnonzero((self.events.before >= 0) & (self.events.after >= 0))
        same = same_images(*(_take(self.rows, c[updates]) for c in (self.events.before, self.events.after)))
        kept = np.ones(len(self.events), np.bool_)
        kept[updates[same]] = False
        return self if kept.all() else Log(self.rows, self.events.take(kept))

    def net(self) -> Net:
        """What all commits together change."""
        order = sort_places(self.events.key)
        starts = group_starts(self.events.key[order])
        ends = np.append(starts[1:], True)[: len(starts)]
        before, after = self.events.before[order[starts]], self.events.after[order[ends]]
        both = (before >= 0) & (after >= 0)
        old, new = _take(self.rows, before[both]), _take(self.rows, after[both])
        differ = pa.array(~same_images(old, new))
        return Net(
            _take(self.rows, after[(before < 0) & (after >= 0)]),
            _take(self.rows, before[(before >= 0) & (after < 0)]),
            old.filter(differ),
            new.filter(differ),
        )


def replay(services: Services, batch: Batch, ranks: Numbers, first: int, keep: Collection[str] = ()) -> Log:
    """Follows every row's chain of images through the batch.

    Args:
        services: the engine's parts.
        batch: the changes.
        ranks: of each change the place of its source transaction.
        first: the commit version of the first one.
        keep: the columns that an upsert leaves as they are in a row that is there before the batch.

    Raises:
        ConstraintError: a key that is to be inserted exists, or one to be updated or deleted does not.
    """
    rows = _with_row_ids(services, batch)
    there = _existing(services, batch, rows)
    images = pa.concat_tables([rows, there]).combine_chunks()
    keys, old, theirs = _number(batch, images, rows.num_rows)
    images = _with_kept(batch, images, keys, theirs, keep)
    steps = _steps(batch, keys, old, ranks)
    before = _found(steps, theirs, rows.num_rows)
    _check_steps(batch, rows, steps, before)
    starts = group_starts(steps.key, ranks[steps.row])
    ends = np.append(starts[1:], True)[: len(starts)]
    events = Events(
        before[starts],
        np.where(steps.leaves, steps.row, -1)[ends],
        first + ranks[steps.row[starts]],
        steps.key[starts],
    )
    events = events.take(sort_places(steps.place[starts]))
    return Log(images, events.take((events.before >= 0) | (events.after >= 0))).without_no_ops()


# ---------------------------------------------------------------- steps


@dataclass(frozen=True)
class _Steps:
    """What the changes do to single keys, by key and time. An update that changes the key is two of them."""

    key: Numbers
    place: Numbers
    row: Numbers
    """The change, as its position in the batch."""
    needs: Numbers
    """1: a row must be there, -1: none may be, 0: it is all the same."""
    leaves: npt.NDArray[np.bool_]
    """Is there a row afterwards?"""


NEEDS = {
    Operation.INSERT: -1,
    Operation.UPDATE: 1,
    Operation.DELETE: 1,
    Operation.UPSERT: 0,
    Operation.PARTIAL_DELETE: 0,
    Operation.PARTIAL_UPDATE: 1,
}
"""1: a row must be there, -1: none may be, 0: it is all the same."""
_DELETES = (Operation.DELETE, Operation.PARTIAL_DELETE)


def _steps(batch: Batch, keys: Numbers, old: Numbers, ranks: Numbers) -> _Steps:
    operations, count = batch.operations, len(keys)
    place = np.empty(count, np.int64)
    place[batch.in_order(ranks)] = 2 * np.arange(count)
    moved = np.flatnonzero((operations == Operation.UPDATE) & (old != keys))
    leaves = ~np.isin(operations, _DELETES)
    leaves[moved] = False
    key = np.append(np.where(leaves, keys, old), keys[moved])
    place = np.append(place, place[moved] + 1)
    order = sort_places(key, place)
    needs = np.append(np.array([NEEDS[each] for each in Operation])[operations], np.full(len(moved), -1))
    return _Steps(
        key[order],
        place[order],
        np.append(np.arange(count), moved)[order],
        needs[order],
        np.append(leaves, np.ones(len(moved), np.bool_))[order],
    )


def _found(steps: _Steps, theirs: Numbers, count: int) -> Numbers:
    """The row that each step finds, as a position in the images, of which the first `count` are the batch's own."""
    starts = group_starts(steps.key)
    found = np.where(starts, -1, np.where(np.roll(steps.leaves, 1), np.roll(steps.row, 1), -1))
    places = find_places(steps.key[starts], theirs)
    found[starts] = np.where(places < 0, -1, count + places)
    return found


def _check_steps(batch: Batch, rows: pa.Table, steps: _Steps, before: Numbers) -> None:
    """Raises ConstraintError for the first step that does not find what it needs."""
    exists = before >= 0
    wrong = np.flatnonzero(((steps.needs > 0) & ~exists) | ((steps.needs < 0) & exists))
    if not len(wrong):
        return
    at = wrong[np.argmin(steps.place[wrong])]
    operation = Operation(batch.operations[steps.row[at]])
    raise step_error(batch.table, operation, int(steps.needs[at]), rows.slice(int(steps.row[at]), 1))


def step_error(table: Table, operation: Operation, needs: int, row: pa.Table) -> ConstraintError:
    """The error of a change that does not find what it needs; `row` is the change's."""
    which = "the new" if operation is Operation.UPDATE else "this"
    why = "there is no row with this key" if needs > 0 else f"a row with {which} key exists already"
    shown = ", ".join(f"{k} = {v!r}" for k, v in python_rows(row)[0].items() if k != ROW_ID)
    return ConstraintError(
        f"cannot {operation.word} a row of table {table.name}: {why}",
        detail=f"the change is ({shown})",
        hint="nothing of the batch was applied; an operation `upsert` inserts or updates",
    )


# ---------------------------------------------------------------- rows and keys


def _take(rows: pa.Table, places: Numbers) -> pa.Table:
    return rows.take(pa.array(places))


def _with_row_ids(services: Services, batch: Batch) -> pa.Table:
    table = batch.table
    if not table.storage.has_row_id:
        return batch.rows
    wrong = batch.operations[batch.operations != Operation.INSERT]
    if len(wrong):
        raise ConstraintError(
            f"table {table.name} has no PRIMARY KEY, so that {Operation(wrong[0]).word} cannot find its row",
            hint="only inserts can be applied to it",
        )
    count = batch.rows.num_rows
    start = services.catalog.reserve_row_ids(table.storage.id, count) if count else 0
    return batch.rows.append_column(ROW_ID, pa.array(np.arange(start, start + count)))


def _existing(services: Services, batch: Batch, rows: pa.Table) -> pa.Table:
    """The rows that the table has now for every key that the batch names."""
    storage = batch.table.storage
    if storage.has_row_id:
        return empty(storage.physical_columns)
    wanted = rows.select(list(storage.identity))
    if batch.old_keys is not None:
        wanted = pa.concat_tables([wanted, batch.old_keys.select(wanted.column_names).drop_null()])
    newest = services.catalog.newest_version
    return conform(services.reader.lookup(storage, newest, wanted), storage.physical_columns)


def _with_kept(
    batch: Batch, images: pa.Table, keys: Numbers, theirs: Numbers, keep: Collection[str]
) -> pa.Table:
    """The images, with the columns to keep of upserted rows as the rows have them that are there."""
    if not keep or not len(theirs):
        return images
    there = find_places(keys, theirs)
    kept = np.arange(images.num_rows)
    upserts = np.flatnonzero((there >= 0) & (batch.operations == Operation.UPSERT))
    kept[upserts] = len(keys) + there[upserts]
    for name in keep:
        place = images.column_names.index(name)
        images = images.set_column(
            place, images.schema.field(place), images.column(name).take(pa.array(kept))
        )
    return images


def _number(batch: Batch, images: pa.Table, count: int) -> tuple[Numbers, Numbers, Numbers]:
    """The keys as numbers: of the `count` changes after and before, and of the rows that are there."""
    identity = identity_columns(batch.table.storage)
    named = images.select([c.name for c in identity])
    if batch.old_keys is None:
        numbers = Identities(named, identity).numbers
        return numbers[:count], numbers[:count], numbers[count:]
    old_keys = batch.old_keys.select(named.column_names)
    numbers = Identities(pa.concat_tables([named, old_keys]), identity).numbers
    keys, old = numbers[:count], numbers[images.num_rows :]
    given = np.zeros(count, np.bool_)  # old columns that are left empty say nothing
    for column in old_keys.columns:
        given |= np.asarray(pc.is_valid(column))
    given &= np.isin(batch.operations, (Operation.UPDATE, *_DELETES))
    return keys, np.where(given, old, keys), numbers[count : images.num_rows]
