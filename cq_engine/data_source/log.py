"""What Spark's driver asks of a query's delta log: its columns, how far it reaches, and which task reads what of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import types as t

from cq_engine.catalog import apply
from cq_engine.catalog.change_rows import COMMIT_VERSION, KINDS
from cq_engine.catalog.flush import with_timestamps
from cq_engine.catalog.model import ChangeSet, ContinuousQuery, DataFile, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import reading
from cq_engine.core.clock import SystemClock
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, CatalogError, StorageError
from cq_engine.core.types import rebuild_type, spark_schema, spark_type
from cq_engine.data_source.rows import Partition, Piece, Selection
from cq_engine.storage.change_rows import retry_reading, shared_log
from cq_engine.storage.rows import change_columns, conform, feed_columns, open_dataset

__all__ = ["QueryLog"]

_REFRESH = "refresh the query first, or read up to its position"


class QueryLog:
    """The delta log of the continuous query `name`, read-only. Raises CatalogError where there is no such warehouse or query."""

    def __init__(
        self, warehouse: str, catalog: str | None, name: str, storage: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self.catalog = Catalog.open(
            warehouse, url=catalog, read_only=True, clock=SystemClock(), storage=storage
        )
        try:
            self._id = self.query.id
        except BaseException:
            self.close()
            raise

    @property
    def query(self) -> ContinuousQuery:
        """What is known of the query now."""
        return apply.find_query(self.catalog.state, self._name)

    @property
    def position(self) -> int:
        """The version up to which the query has processed everything."""
        return self.catalog.status(self._name).position

    @property
    def schema(self) -> t.StructType:
        """The columns of the rows. PySpark's data sources have no year-month intervals: those are the number of their months."""
        return t.StructType(
            [
                t.StructField(field.name, rebuild_type(field.dataType, _carried), True)
                for field in spark_schema(feed_columns(self.query))
            ]
        )

    def close(self) -> None:
        """Closes the catalog."""
        self.catalog.close()

    # ------------------------------------------------------------ checks

    def check_same(self, number: int) -> None:
        """Raises CatalogError where the query is another one than that with this number, of which offsets are."""
        if self.query.id != number:
            raise CatalogError(
                f"continuous query {self._name} was replaced by another one",
                hint="start a new stream, with a new checkpoint",
            )

    def check_schema(self, schema: t.StructType) -> None:
        """Raises AnalysisError where Spark expects other columns than the query has."""
        wanted, found = ([(f.name.lower(), f.dataType) for f in each] for each in (schema, self.schema))
        if wanted != found:
            raise AnalysisError(
                f"the columns of continuous query {self._name} are others than those that Spark expects",
                detail=f"they are {self.schema.simpleString()}",
                hint="read it without a schema of your own; where the query was altered, load it again",
            )

    def check_processed(self, version: int, hint: str = "") -> None:
        """Raises AnalysisError where the query has not come to `version`."""
        if version > self.position:
            raise AnalysisError(
                f"continuous query {self._name} has not processed version {version}",
                detail=f"its position is {self.position}",
                hint=hint or "a checkpoint goes with one warehouse, and not with an earlier copy of it",
            )

    # ------------------------------------------------------------ versions

    def start(self, starting: int | None) -> int:
        """The version before the first that is to be read: `starting`, by default the first that is kept."""
        query = self.query
        begun = max(
            query.created_version - 1, 0
        )  # START FROM SNAPSHOT has deltas at the version of its creation
        if starting is None:
            return max(begun, self.catalog.floor(query.result.id))
        if starting - 1 > self.catalog.newest_version:
            raise AnalysisError(
                f"there is no version {starting} yet",
                hint=f"the newest commit version is {self.catalog.newest_version}",
            )
        return max(starting - 1, begun)

    def end(self, after: int, ending: int | None) -> int:
        """The last version to be read: `ending`, by default the newest that the query has processed."""
        if ending is None:
            self.check_processed(after, _REFRESH)
            return self.position
        self.check_processed(ending, _REFRESH)
        if ending < after:
            raise AnalysisError(f"the versions from {after + 1} to {ending} are backwards")
        return ending

    def has_rows(self, after: int, upto: int) -> bool:
        """Whether there may be deltas of (after, upto]."""
        return bool(self.catalog.changes(self.query.result.id, after + 1, upto))

    @retry_reading
    def cut(self, after: int, upto: int, versions: int, rows: int) -> int:
        """The end of a batch after `after` with at most so many versions that have deltas, and change rows, but at least
        one version; `upto` where everything fits."""
        last = None
        for version, count in self._counts(after, upto):
            rows -= count
            if last is not None and (rows < 0 or versions == 0):
                return last
            last, versions = version, versions - 1
        return upto

    def _sets(self, after: int, upto: int) -> tuple[ChangeSet, ...]:
        query = self.query
        floor = self.catalog.floor(query.result.id)
        if after < floor:
            raise StorageError(
                f"the deltas of continuous query {query.name} from version {after + 1} on are no longer kept",
                detail=f"the first that are kept are those of version {floor + 1}",
                hint="begin anew with a new checkpoint; WITH (retention = '30 days') keeps them longer",
            )
        return self.catalog.changes(query.result.id, after + 1, upto)

    def _counts(self, after: int, upto: int) -> Iterator[tuple[int, int]]:
        """The versions of (after, upto] with change rows, and how many of them, in order."""
        for each in self._sets(after, upto):
            if each.low == each.high:
                yield each.low, each.rows
                continue
            if each.files:
                store = self.catalog.store
                paths = [store.path(file.path) for file in each.files]
                found = open_dataset(paths, [Column(COMMIT_VERSION, "bigint")], store.filesystem).to_table()
            else:
                found = self.catalog.inline(each)
            numbers, counts = np.unique(found.column(COMMIT_VERSION).to_numpy(), return_counts=True)
            yield from ((int(n), int(c)) for n, c in zip(numbers, counts) if after < n <= upto)

    # ------------------------------------------------------------ partitions

    @retry_reading
    def partitions(self, after: int, upto: int, size: int) -> list[Partition]:
        """Who reads what of the change rows of (after, upto]: parts of about `size` rows, each of some versions.

        Small change sets, which lie in the catalog, go with the partition.
        """
        query = self.query
        log = query.result if query.result.part is None else shared_log(query.result)
        kinds = tuple(kind for kind, of in KINDS.items() if any(word[0] in query.markers for word in of))
        selection = Selection(
            self.catalog.store,
            feed_columns(query),
            after,
            upto,
            kinds,
            query.result.part,
        )
        made: list[Partition] = []
        pieces: list[Piece] = []
        rows = 0
        for piece in self._pieces(log, selection, size):
            if pieces and rows + piece.count > size:
                made.append(Partition(selection, pieces))
                pieces, rows = [], 0
            pieces.append(piece)
            rows += piece.count
        return [*made, Partition(selection, pieces)] if pieces else made

    def _pieces(self, log: VersionedTable, selection: Selection, size: int) -> Iterator[Piece]:
        for each in self._sets(selection.after, selection.upto):
            if each.inline_id is not None:
                rows = conform(self.catalog.inline(each), change_columns(log))
                found = selection.of(with_timestamps(self.catalog, rows, each.low, each.high))
                if found.num_rows:
                    yield Piece(found.num_rows, rows=found)
                continue
            one = each.low if each.insert_only or each.low == each.high else None
            moment = None if one is None else self.catalog.timestamp(one)
            for file in each.files:
                shares = self._shares(file, size)
                count = math.ceil(file.rows / shares)
                for share in range(shares):
                    yield Piece(count, None, file, share, shares, one, moment, each.insert_only)

    def _shares(self, file: DataFile, size: int) -> int:
        """By how many tasks a file is read: they share its row groups."""
        if file.rows <= size:
            return 1
        store = self.catalog.store
        with reading(f"read {file.path} for Spark", store, [file]):
            groups = pq.read_metadata(store.source(file.path)).num_row_groups
        return min(int(groups), math.ceil(file.rows / size))


def _carried(kind: t.DataType) -> t.DataType:
    return spark_type("int") if isinstance(kind, t.YearMonthIntervalType) else kind
