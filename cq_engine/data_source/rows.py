"""What Spark's executors do: read a partition of a delta log from its files, or from what came with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, INSERT, MEMBER
from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.tables import reading
from cq_engine.core.arrays import repeated
from cq_engine.core.columns import Column
from cq_engine.core.errors import StorageError
from cq_engine.core.types import arrow_type
from cq_engine.storage.layout import in_layout
from cq_engine.storage.rows import conform, open_dataset

__all__ = ["Partition", "Piece", "Selection", "batches"]


@dataclass(frozen=True)
class Selection:
    """Which change rows are wanted of a log, and which columns: those of the versions (after, upto], of some change types,
    and of one member of a query group where the log is shared."""

    store: Store
    columns: tuple[Column, ...]
    after: int
    upto: int
    kinds: tuple[str, ...]
    member: int | None

    def of(self, rows: pa.Table) -> pa.Table:
        """The wanted ones of `rows`."""
        version = pc.field(COMMIT_VERSION)
        wanted = (version > self.after) & (version <= self.upto) & pc.field(CHANGE_TYPE).isin(self.kinds)
        if self.member is not None:
            wanted &= pc.field(MEMBER) == self.member
        return conform(rows.filter(wanted), self.columns)


@dataclass(frozen=True)
class Piece:
    """Change rows of one change set: `rows`, which are selected, or a share of a file's row groups.

    `version` and `moment` are those of all of its rows where it has one version; `inserts`: the file has nothing else, and
    does not say so. `count` is about how many rows there are.
    """

    count: int
    rows: pa.Table | None = None
    file: DataFile | None = None
    share: int = 0
    shares: int = 1
    version: int | None = None
    moment: datetime | None = None
    inserts: bool = False


class Partition(InputPartition):
    """What one task reads."""

    def __init__(self, selection: Selection, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.selection = selection
        self.pieces = tuple(pieces)


def batches(partition: Partition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in the types that PySpark has for `schema`.

    Raises StorageError where a file is gone or cannot be read.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    for piece in partition.pieces:
        for rows in (piece.rows,) if piece.rows is not None else _read(piece, partition.selection):
            yield from in_layout(rows, wanted).to_batches()


def _read(piece: Piece, selection: Selection) -> Iterator[pa.Table]:
    assert piece.file is not None
    constants: dict[str, object] = {}
    if piece.version is not None:
        constants = {COMMIT_VERSION: piece.version, COMMIT_TIMESTAMP: piece.moment}
    if piece.inserts:
        constants[CHANGE_TYPE] = INSERT
    stored = [c for c in selection.columns if c.name not in constants]
    if selection.member is not None:
        stored.append(Column(MEMBER, "bigint"))
    types = {c.name: arrow_type(c.type) for c in selection.columns}
    with reading(f"read {piece.file.path} for Spark", selection.store, [piece.file]):
        for batch in _scan(selection.store, piece.file.path, stored, piece):
            rows = pa.Table.from_batches([batch])
            for name, value in constants.items():
                rows = rows.append_column(name, repeated(value, types[name], rows.num_rows))
            yield selection.of(rows)


def _scan(store: Store, path: str, columns: Sequence[Column], piece: Piece) -> Iterator[pa.RecordBatch]:
    try:
        dataset = open_dataset([store.path(path)], columns, store.filesystem)
        (fragment,) = dataset.get_fragments()
        count = fragment.metadata.num_row_groups
        first, end = (count * n // piece.shares for n in (piece.share, piece.share + 1))
        part = fragment.subset(row_group_ids=list(range(first, end)))
        yield from part.to_batches(schema=dataset.schema)
    except FileNotFoundError as error:
        raise StorageError(
            f"{store.uri(path)} is not there",
            detail="its deltas are no longer kept, or this executor does not see the warehouse",
            hint="executors read the warehouse at the path that the driver has; WITH (retention = '30 days') keeps deltas longer",
        ) from error
