"""Changes of a table WITHOUT SNAPSHOT: nothing says what its rows were but the changes themselves.

A change tells something of the row before it and of the row after it. Of all changes of one key in one transaction, the
net change has what the first one tells of before and what the last one tells of after (Jörg & Dessloch, §3):

| operation | before | after |
|---|---|---|
| insert | no row | the row |
| update | the old row, from the columns `old_...` | the row |
| delete | the row | no row |
| partial_update | a row | the row |
| upsert | a row, or none | the row |
| partial_delete | a row, or none | no row |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    PARTIAL_DELETE,
    PARTIAL_UPDATE,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    UPSERT,
)
from cq_engine.catalog.model import Table
from cq_engine.core.arrays import group_starts, sort_places
from cq_engine.core.errors import AnalysisError
from cq_engine.core.values import python_rows
from cq_engine.storage.identities import Identities, Numbers
from cq_engine.storage.rows import change_columns, conform, identity_columns, same_images
from cq_engine.transactions.change_batches import Batch, Operation
from cq_engine.transactions.constraints import check_not_null

__all__ = ["partial_changes"]

_NO_ROW, _ROW, _SOME_ROW, _ANY = range(4)
"""What is known of a row before a change: that there was none, all of it, that there was one, nothing."""
_BEFORE = {
    Operation.INSERT: _NO_ROW,
    Operation.UPDATE: _ROW,
    Operation.DELETE: _ROW,
    Operation.UPSERT: _ANY,
    Operation.PARTIAL_DELETE: _SOME_ROW,
    Operation.PARTIAL_UPDATE: _SOME_ROW,
}
_DELETES = (Operation.DELETE, Operation.PARTIAL_DELETE)
_AFTER = {_NO_ROW: INSERT, _ROW: UPDATE_POSTIMAGE, _SOME_ROW: PARTIAL_UPDATE, _ANY: UPSERT}


@dataclass(frozen=True)
class _Steps:
    """Changes of single keys: `old` and `new` are places in a table of images, -1 where there is no row or none known."""

    key: Numbers
    rank: Numbers
    place: Numbers
    before: Numbers
    old: Numbers
    new: Numbers
    image: Numbers
    """The place of a row that has the key."""

    def take(self, places: Numbers) -> _Steps:
        return _Steps(*(each[places] for each in vars(self).values()))


def partial_changes(batch: Batch, ranks: Numbers, first: int) -> pa.Table:
    """The net changes of every key in every transaction as change rows.

    Args:
        batch: the changes.
        ranks: of each change the place of its source transaction.
        first: the commit version of the first one.

    Raises:
        AnalysisError: an update does not say what the row was before.
        ConstraintError: NOT NULL.
    """
    table = batch.table
    _check_updates(batch)
    came = np.flatnonzero(~np.isin(batch.operations, _DELETES))
    check_not_null(table, batch.rows.take(pa.array(came)))
    images = _images(batch)
    steps = _steps(batch, images, ranks)
    steps = steps.take(sort_places(steps.key, steps.rank, steps.place))
    starts = np.flatnonzero(group_starts(steps.key, steps.rank))
    ends = np.append(starts[1:], len(steps.key)) - 1
    before, after = steps.before[starts], steps.new[ends]
    returned = (
        (before == _SOME_ROW) & (after >= 0) & (steps.new[starts] < 0)
    )  # deleted by key, which may not have been there
    before = np.where(returned, _ANY, before)
    old = np.where(before == _ROW, steps.old[starts], -1)
    pairs = np.flatnonzero((old >= 0) & (after >= 0))
    same = same_images(images.take(pa.array(old[pairs])), images.take(pa.array(after[pairs])))
    kept = (after >= 0) | (before != _NO_ROW)
    kept[pairs[same]] = False
    order = np.flatnonzero(kept)
    order = order[sort_places(steps.rank[starts][order], steps.place[starts][order])]
    versions = first + steps.rank[starts]
    return _rows(
        table, images, before[order], old[order], after[order], steps.image[starts][order], versions[order]
    )


def _check_updates(batch: Batch) -> None:
    updates = np.flatnonzero(batch.operations == Operation.UPDATE)
    if len(updates) and batch.old_rows is None:
        raise AnalysisError(
            f"an update of table {batch.table.name} does not say what the row was",
            detail="the table was created WITHOUT SNAPSHOT: there is no row to look at",
            hint="give the old values in columns old_..., or say partial_update: the new values of a row that is there",
        )
    if not len(updates) or batch.old_rows is None:
        return
    missing = updates[~_has_key(batch, batch.old_rows)[updates]]
    if len(missing):
        shown = python_rows(batch.rows.select(batch.table.storage.identity).slice(int(missing[0]), 1))[0]
        raise AnalysisError(
            f"the update of {shown} of table {batch.table.name} has no old key",
            hint="give the old values of every column, or say partial_update",
        )


def _images(batch: Batch) -> pa.Table:
    """The rows of the changes, behind them those before the changes, as far as they are known."""
    columns = batch.table.columns
    parts = [conform(batch.rows, columns)]
    if batch.old_rows is not None:
        parts.append(conform(batch.old_rows, columns))
    elif batch.old_keys is not None:
        parts.append(conform(batch.old_keys, columns))
    return pa.concat_tables(parts).combine_chunks()


def _steps(batch: Batch, images: pa.Table, ranks: Numbers) -> _Steps:
    operations, count = batch.operations, len(batch.operations)
    identity = identity_columns(batch.table.storage)
    numbers = Identities(images.select([c.name for c in identity]), identity).numbers
    own = np.arange(count)
    place = np.empty(count, np.int64)
    place[batch.in_order(ranks)] = 2 * own
    deletes = np.isin(operations, _DELETES)
    before = np.array([_BEFORE[each] for each in Operation])[operations]
    known = _known_before(batch, images)
    if batch.old_rows is None:  # of a deletion by the old key, nothing else is known
        before = np.where((operations == Operation.DELETE) & (known >= 0), _SOME_ROW, before)
    old = np.where(before == _ROW, np.where(known >= 0, known, own), -1)
    whole = _Steps(
        np.where(known >= 0, numbers[known], numbers[:count]), ranks, place, before, old, np.where(deletes, -1, own),
        np.where(known >= 0, known, own),
    )  # fmt: skip
    moved = np.flatnonzero(~deletes & (whole.key != numbers[:count]))
    if not len(moved):
        return whole
    # A change of the key is a deletion of the old one and an insertion of the new one, or an upsert.
    came = _Steps(
        numbers[:count][moved], ranks[moved], place[moved] + 1,
        np.where(before[moved] == _ROW, _NO_ROW, _ANY), np.full(len(moved), -1), own[moved], own[moved],
    )  # fmt: skip
    whole.new[moved] = -1
    return _Steps(*(np.append(a, b) for a, b in zip(vars(whole).values(), vars(came).values())))


def _known_before(batch: Batch, images: pa.Table) -> Numbers:
    """Of each change the place of the image before it, or of the key before it; -1 where nothing was given."""
    count = len(batch.operations)
    if images.num_rows == count:
        return np.full(count, -1)
    given = _has_key(batch, images.slice(count)) & (batch.operations != Operation.INSERT)
    # A deletion has its row in the table's columns, where it has one.
    given &= ~(_has_key(batch, images.slice(0, count)) & (batch.operations == Operation.DELETE))
    return np.where(given, count + np.arange(count), -1)


def _has_key(batch: Batch, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Of each row whether no column of the table's key is NULL."""
    found = np.ones(rows.num_rows, np.bool_)
    for name in batch.table.storage.identity:
        found &= np.asarray(pc.is_valid(rows.column(name)))
    return found


def _rows(
    table: Table,
    images: pa.Table,
    before: Numbers,
    old: Numbers,
    after: Numbers,
    image: Numbers,
    versions: Numbers,
) -> pa.Table:
    """The change rows of net changes, the row before an update in front of that after it."""
    gone = after < 0
    words = [INSERT, UPDATE_POSTIMAGE, PARTIAL_UPDATE, UPSERT, UPDATE_PREIMAGE, DELETE, PARTIAL_DELETE]
    number = {word: n for n, word in enumerate(words)}
    coming = np.array([number[_AFTER[each]] for each in range(4)])[before]
    known = before == _ROW
    second = np.where(gone, -1, coming)
    going = np.where(known, number[DELETE], number[PARTIAL_DELETE])
    kinds = np.column_stack(
        (np.where(gone, going, np.where(known, number[UPDATE_PREIMAGE], -1)), second)
    ).ravel()
    places = np.column_stack((np.where(known, old, image), after)).ravel()
    there = kinds >= 0
    kinds, places = kinds[there], places[there]
    rows = images.take(pa.array(places))
    key_only = kinds == number[PARTIAL_DELETE]
    rows = _only_keys(table, rows, key_only) if key_only.any() else rows
    rows = rows.append_column(CHANGE_TYPE, pa.array(words).take(pa.array(kinds)))
    rows = rows.append_column(COMMIT_VERSION, pa.array(np.repeat(versions, 2)[there]))
    return conform(rows, change_columns(table.storage))


def _only_keys(table: Table, rows: pa.Table, chosen: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows, with NULL in all other columns of the chosen ones."""
    places = pa.array(np.arange(rows.num_rows), mask=chosen)
    for n, field in enumerate(rows.schema):
        if field.name not in table.storage.identity:
            rows = rows.set_column(n, field.with_nullable(True), rows.column(field.name).take(places))
    return rows
