"""The format `cq` as PySpark's Python data source API asks for it. What it needs is imported when it is used: PySpark
imports this module to see which formats there are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cq_engine.core.errors import AnalysisError, did_you_mean
from cq_engine.core.options import STORAGE

if TYPE_CHECKING:
    import pyarrow as pa

    from cq_engine.data_source.log import QueryLog

__all__ = ["Asked", "SparkSource"]

QUIET_SECONDS = 60.0
"""For so long a stream's offset stays behind the query's position where there are no deltas. Then an empty batch moves it,
so that retention does not pass it."""

_NUMBERS = (
    "startingVersion",
    "endingVersion",
    "maxVersionsPerTrigger",
    "maxRowsPerTrigger",
    "rowsPerPartition",
)
_OPTIONS = ("warehouse", "catalog", "query", "path", *_NUMBERS)
_LATEST = -1
_MOST = 2**62


@dataclass(frozen=True)
class Asked:
    """The options of `spark.read` and `spark.readStream`, checked."""

    warehouse: str
    query: str
    catalog: str | None
    starting: int | None
    """None: the first version that is kept; -1: what comes from now on."""
    ending: int | None
    versions: int | None
    rows: int | None
    partition: int
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How the object store is reached that the warehouse is in."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Asked:
        """Raises AnalysisError for an option that there is not, that is missing, or with a value that it cannot have."""
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _OPTIONS}
        for name in given:
            if name not in known and not name.startswith(STORAGE):
                raise AnalysisError(
                    f"format cq has no option {name}",
                    hint=did_you_mean(
                        name, _OPTIONS, f"it has {', '.join(_OPTIONS)}, and {STORAGE}… of object stores"
                    ),
                )
        numbers = {name: _number(name, given[name.lower()]) for name in _NUMBERS if name.lower() in given}
        return cls(
            given.get("warehouse") or given.get("path") or _missing("warehouse", "path/of/warehouse"),
            given.get("query") or _missing("query", "name"),
            given.get("catalog") or None,
            numbers.get("startingVersion"),
            numbers.get("endingVersion"),
            numbers.get("maxVersionsPerTrigger"),
            numbers.get("maxRowsPerTrigger"),
            numbers.get("rowsPerPartition", 100_000),
            {n.removeprefix(STORAGE): value for n, value in given.items() if n.startswith(STORAGE)},
        )

    def open(self) -> QueryLog:
        """The query's delta log, opened to read."""
        from cq_engine.data_source.log import QueryLog

        return QueryLog(self.warehouse, self.catalog, self.query, self.storage)


class SparkSource(DataSource):
    """The deltas of a continuous query as rows of a change data feed: `spark.readStream.format("cq")`, `spark.read...`.

    The columns are the result columns, `_change_type`, `_commit_version` and `_commit_timestamp`, as CHANGES has them.
    """

    @classmethod
    def name(cls) -> str:
        return "cq"

    def schema(self) -> StructType:
        with closing(Asked.of(self.options).open()) as log:
            return log.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = Asked.of(self.options)
        if asked.starting == _LATEST:
            raise AnalysisError(
                "startingVersion = latest is for readStream", hint="give a version, or leave it out"
            )
        return _Range(asked, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's
        asked = Asked.of(self.options)
        if asked.ending is not None:
            raise AnalysisError("endingVersion is for spark.read", hint="a stream has no end")
        return _Stream(asked, schema)


class _Range(DataSourceReader):
    """The deltas of some versions, for `spark.read`."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self.asked = asked
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with closing(self.asked.open()) as log:
            log.check_schema(self.schema)
            after = log.start(self.asked.starting)
            upto = log.end(after, self.asked.ending)
            return log.partitions(after, upto, self.asked.partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.schema)


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The deltas of all versions from one on, for `spark.readStream`.

    An offset is {"query": the query's number, "version": the last version that was given, "begun": that before the stream's
    first}. Spark asks for `initialOffset` again where it starts over before the first batch was done; the batch that it then
    repeats begins where its end says.
    """

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self.asked = asked
        self.schema = schema
        self._opened: QueryLog | None = None
        self._target: int | None = None
        self._moved: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's, as are those below
        log = self._log()
        after = log.position if self.asked.starting == _LATEST else log.start(self.asked.starting)
        return {"query": log.query.id, "version": after, "begun": after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limited = self.asked.rows is not None or self.asked.versions is not None
        return ReadMaxRows(self.asked.rows or _MOST) if limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log().position

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        log, after = self._log(), start["version"]
        log.check_same(start["query"])
        if after != start["begun"]:
            log.check_processed(after)
        upto = log.position if self._target is None else min(log.position, self._target)
        if upto <= after or not (log.has_rows(after, upto) or self._is_quiet()):
            return start
        if not isinstance(limit, ReadAllAvailable):
            upto = log.cut(after, upto, self.asked.versions or _MOST, self.asked.rows or _MOST)
        self._moved = time.monotonic()
        return {**start, "version": upto}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        log = self._log()
        log.check_same(end["query"])
        log.check_schema(self.schema)
        log.check_processed(end["version"])
        after = start["version"] if start["begun"] == end["begun"] else end["begun"]
        return log.partitions(after, end["version"], self.asked.partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.schema)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _log(self) -> QueryLog:
        if self._opened is None:
            self._opened = self.asked.open()
        return self._opened

    def _is_quiet(self) -> bool:
        return self._moved is None or time.monotonic() - self._moved >= QUIET_SECONDS


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    from cq_engine.data_source.rows import Partition, batches

    return batches(partition, schema) if isinstance(partition, Partition) else iter(())


def _missing(name: str, value: str) -> str:
    raise AnalysisError(f"format cq lacks the option {name}", hint=f'add .option("{name}", "{value}")')


def _number(name: str, value: str) -> int:
    if name == "startingVersion" and value.lower() == "latest":
        return _LATEST
    least = 0 if name in _NUMBERS[:2] else 1
    if not (value.isascii() and value.isdigit()) or int(value) < least:
        more = " or latest" if name == "startingVersion" else ""
        raise AnalysisError(f"option {name} = {value} is not possible", hint=f"it is a number{more}")
    return int(value)
