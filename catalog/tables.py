"""Parquet files as the catalog sees them: what their footers say, how one is written, which ones can be skipped.

Statistics are JSON values, by which files are pruned:

| column | in `DataFile.stats` |
|---|---|
| integers, BOOLEAN | the number, true or false |
| STRING | the text, up to 64 characters |
| DATE | ISO date |
| TIMESTAMP, TIMESTAMP_NTZ | ISO time with microseconds, the former in UTC |
| DECIMAL up to 18 digits | the number as text |
| all others; FLOAT and DOUBLE, where NaN is not counted | nothing |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core import faults
from cq_engine.core.arrays import distinct
from cq_engine.core.disk import RESTORE, disk_error

__all__ = [
    "batches",
    "damage",
    "data_file",
    "data_files",
    "dictionaries",
    "footer_stats",
    "least_and_most",
    "prune",
    "reading",
    "write_parquet",
    "writing",
]

_LONGEST_TEXT = 64


@contextmanager
def reading(doing: str, store: Store, files: Iterable[DataFile]) -> Iterator[None]:
    """A block that reads `files`, for `doing`. What it fails with is a StorageError that says so, and what is wrong with
    which of the files."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        wrong = next((text for file in files if (text := damage(store, file))), "")
        raise disk_error(doing, error, store.location, damage=wrong, hint=RESTORE) from error


@contextmanager
def writing(path: str, store: Store) -> Iterator[None]:
    """A block that writes the file at `path`. What the system refuses is a StorageError that names it."""
    try:
        yield
    except OSError as error:
        raise disk_error(f"write {path}", error, store.location) from error


def damage(store: Store, file: DataFile) -> str:
    """What is wrong with a data file; empty where it is as the catalog says."""
    try:
        size = store.stat(file.path).size
        if size != file.bytes:
            return f"{file.path} has {size} bytes, the catalog says {file.bytes}"
        pq.read_metadata(store.source(file.path))
    except FileNotFoundError:
        return f"{file.path} is not there"
    except (OSError, pa.ArrowException) as error:
        return f"{file.path} is damaged: {str(error).splitlines()[0]}"
    return ""


def data_files(
    directory: str, store: Store, stats_columns: Iterable[str], *, durable: bool = True
) -> list[DataFile]:
    """The Parquet files that Spark has written below `directory` in the order of their paths, made `durable`, without empty
    ones: it writes a file of no rows where its first partition is empty."""
    columns = list(stats_columns)
    listed = [
        found
        for found in store.list(directory)
        if found.path.endswith(".parquet")
        and not any(part.startswith(("_", ".")) for part in found.path.removeprefix(directory).split("/"))
    ]

    def read(found: Found) -> DataFile:
        return data_file(found.path, store, columns, durable=durable, size=found.size)

    files = store.together(read, listed)
    return [file for file in files if file.rows]


def data_file(
    path: str, store: Store, stats_columns: Iterable[str], *, durable: bool = True, size: int | None = None
) -> DataFile:
    """One Parquet file, by its footer, made `durable`, whoever wrote it; its bytes, where the caller does not know them."""
    with writing(path, store):
        faults.point("file.written", store.file(path))
        if durable:
            store.make_durable(path)
        metadata = pq.read_metadata(store.source(path))
        size = store.stat(path).size if size is None else size
    return DataFile(path, metadata.num_rows, size, footer_stats(metadata, stats_columns))


def batches(store: Store, path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file in batches of at most so many. A session of the user's own writes times as INT96, of which
    Arrow would make nanoseconds: those from 1677 to 2262."""
    with pq.ParquetFile(store.source(path), coerce_int96_timestamp_unit="us") as reader:
        yield from reader.iter_batches(batch_size=rows)


def write_parquet(
    rows: pa.Table,
    path: str,
    store: Store,
    stats_columns: Iterable[str] = (),
    row_group: int | None = None,
) -> DataFile:
    """Writes `rows` to `path`, durably, making its directory; in groups of `row_group` rows."""
    return store.ask(
        lambda: _write_parquet(rows, path, store, stats_columns, row_group), lambda: store.delete(path)
    )


def _write_parquet(
    rows: pa.Table, path: str, store: Store, stats_columns: Iterable[str], row_group: int | None
) -> DataFile:
    with writing(path, store):
        faults.point("file.begin", store.file(path))
        footers: list[pq.FileMetaData] = []
        with store.writing(path) as sink:
            pq.write_table(
                rows,
                sink,
                compression=CODEC,
                use_dictionary=dictionaries(rows),
                row_group_size=row_group,
                metadata_collector=footers,
            )
            size = sink.tell()
        if store.is_local:
            return data_file(path, store, stats_columns)
        faults.point("file.written")
        return DataFile(path, rows.num_rows, size, footer_stats(footers[0], stats_columns))


def dictionaries(rows: pa.Table) -> list[str] | bool:
    """The columns that are written with a dictionary: those of whose values many are alike, in the middle of the rows. For others it
    is made in vain, which takes as long as everything else. Parquet names nested columns in its own way: where there are some, all
    have one."""
    if rows.num_rows < _FEW or any(pa.types.is_nested(kind) for kind in rows.schema.types):
        return True
    middle = (rows.num_rows - _SAMPLE) // 2
    sample = rows.slice(middle, _SAMPLE)  # which is no copy, however wide the rows are
    return [name for name in rows.column_names if _are_alike(sample.column(name))]


def _are_alike(values: pa.ChunkedArray) -> bool:
    wide = values.nbytes > _WIDE * len(values)
    return bool(wide or 2 * len(pc.unique(values)) <= len(values))


_FEW = 10_000
"""Rows that are written quickly in any case."""
_SAMPLE = 4_096
"""Values of a column that are looked at."""
_WIDE = 256
"""Bytes of a value that is not looked at."""

CODEC = next((c for c in ("zstd", "snappy") if pa.Codec.is_available(c)), "none")


# ---------------------------------------------------------------- statistics


def footer_stats(metadata: Any, wanted: Iterable[str]) -> dict[str, tuple[object, object]]:
    """(min, max) of the top-level columns `wanted` over all row groups, where every one of them says it."""
    leaves = _leaves(metadata.schema.to_arrow_schema())
    found = {}
    for name in wanted:
        leaf = leaves.get(name)
        if leaf is not None:
            bounds = _bounds(metadata, *leaf)
            if bounds is not None:
                found[name] = bounds
    return found


def _leaves(schema: pa.Schema) -> dict[str, tuple[int, Callable[[Any], object]]]:
    """By name: the Parquet column of a top-level column that has usable statistics, and how to make them JSON."""
    found = {}
    place = 0
    for field in schema:
        convert = _converter(field.type)
        if convert is not None:
            found[field.name] = (place, convert)
        place += _width(field.type)
    return found


def _width(kind: pa.DataType) -> int:
    """How many Parquet columns an Arrow type takes."""
    if pa.types.is_map(kind):
        return _width(kind.key_type) + _width(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _width(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(i).type) for i in range(kind.num_fields))
    return 1


def least_and_most(statistics: Any) -> tuple[Any, Any] | None:
    """The bounds of a column in a row group; None where it has none, or Python has no such values."""
    if statistics is None or not statistics.has_min_max:
        return None
    try:
        return statistics.min, statistics.max
    except (OverflowError, UnicodeDecodeError):  # a year after 9999, bytes that are no text
        return None


def _bounds(metadata: Any, place: int, convert: Callable[[Any], object]) -> tuple[object, object] | None:
    low: Any = None
    high: Any = None
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(place).statistics
        if statistics is None:
            return None
        if not statistics.has_min_max:
            if statistics.has_null_count and statistics.num_values == 0:
                continue  # only NULLs
            return None
        found = least_and_most(statistics)
        if found is None:
            return None
        least, most = found
        low = least if low is None or least < low else low
        high = most if high is None or most > high else high
    if low is None:
        return None
    bounds = convert(low), convert(high)
    return None if None in bounds else bounds


def _converter(kind: pa.DataType) -> Callable[[Any], object] | None:
    """From a Python value of the Arrow type to its JSON statistic; None for types that have none."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _itself
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text
    if pa.types.is_date32(kind):
        return _date
    if pa.types.is_timestamp(kind) and kind.unit in ("ms", "us"):
        return _moment if kind.tz is None else _moment_utc
    if pa.types.is_decimal(kind) and kind.precision <= 18:
        return str
    return None


def _itself(value: object) -> object:
    return value


def _text(value: str) -> str | None:
    return value if len(value) <= _LONGEST_TEXT else None


def _date(value: date) -> str:
    return value.isoformat()


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="microseconds")


def _moment_utc(value: datetime) -> str:
    return value.astimezone(timezone.utc).isoformat(timespec="microseconds")


# ---------------------------------------------------------------- pruning


def prune(files: Sequence[DataFile], column: str, values: pa.Array) -> list[DataFile]:
    """The files that may hold a row whose `column` is one of `values` (of the column's own type).

    Conservative: a file stays where its statistics do not say; all stay where `values` holds a NULL or has a type
    without statistics.
    """
    wanted = _distinct_values(values)
    if wanted is None:
        return list(files)
    if not len(wanted):
        return []
    return [
        file for file in files if _may_hold(file.stats.get(column), wanted, pa.types.is_decimal(values.type))
    ]


def _distinct_values(values: pa.Array) -> Sequence[Any] | None:
    """The distinct values in ascending order, as comparable as the statistics; None where they cannot be."""
    if values.null_count:
        return None
    kind = values.type
    if pa.types.is_timestamp(kind) and kind.unit in ("s", "ns"):
        kind = pa.timestamp("us", tz=kind.tz)
    convert = _converter(kind)
    if pa.types.is_decimal(kind):
        return sorted(set(values.to_pylist()))
    if convert is None:
        return None
    if pa.types.is_signed_integer(kind):
        return cast("Sequence[int]", distinct(np.asarray(values)))
    try:
        found = values.cast(kind).to_pylist()
    except (pa.ArrowInvalid, OverflowError, ValueError):  # a time between two microseconds, a year after 9999
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return sorted(set(found))
    try:
        return sorted({convert(value) for value in found})
    except (OverflowError, ValueError):
        return None


def _may_hold(bounds: tuple[object, object] | None, wanted: Sequence[Any], decimal: bool) -> bool:
    if bounds is None:
        return True
    low: Any = bounds[0]
    high: Any = bounds[1]
    if decimal:
        low, high = Decimal(str(low)), Decimal(str(high))
    elif isinstance(low, str) != isinstance(wanted[0], str):
        return True
    place = bisect_left(wanted, low)
    return place < len(wanted) and bool(wanted[place] <= high)
