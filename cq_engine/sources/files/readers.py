"""Files of CSV, JSON lines and Parquet as blocks of rows: the captured columns in the types of ours, and what does not fit."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from cq_engine.catalog.model import Capture, DeclaredSource
from cq_engine.core.arrays import array, repeated
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceUnavailableError
from cq_engine.core.types import arrow_type
from cq_engine.sources.files.directory import Directory
from cq_engine.sources.files.fit import fit
from cq_engine.sources.files.options import value
from cq_engine.sources.json_values import Unreadable, object_of, value_of

__all__ = ["Block", "Wanted", "read"]

_BLOCK_BYTES = 8 * 2**20
_BLOCK_ROWS = 50_000


@dataclass(frozen=True)
class Block:
    """Rows of a file one after the other, and those among them that cannot be read: row number, reason, text."""

    rows: pa.Table
    bad: Sequence[tuple[int, str, str]]
    last: int
    """The number of the last row. The header is row 1 where there is one; of JSON lines it is the line's number."""


@dataclass(frozen=True)
class Wanted:
    """What is read of files: for each column its name there; `required` may not be NULL."""

    names: Sequence[str]
    columns: Sequence[Column]
    required: frozenset[str]

    @classmethod
    def of(cls, capture: Capture, columns: Sequence[Column], key: Sequence[str]) -> Wanted:
        """The columns that a capture fills, in the table's order."""
        sources = {each.target: each.name for each in capture.columns}
        required = {c.name for c in columns if not c.nullable or c.name in key}
        return cls([sources[c.name] for c in columns], columns, frozenset(required))

    def by_position(self, capture: Capture, count: int) -> list[int]:
        """The place in a file without names of each column: files have them in the order of the capture's list."""
        places = {each.target: n for n, each in enumerate(capture.columns)}
        found = [places[c.name] for c in self.columns]
        if max(found) >= count:
            raise Unreadable(f"it has {count} columns, fewer than the {len(places)} of the capture")
        return found


def read(place: Directory, capture: Capture, name: str, wanted: Wanted, after: int = 0) -> Iterator[Block]:
    """The blocks of a file, from the row behind number `after` on.

    Raises Unreadable where the file as a whole cannot be read, SourceUnavailableError where it is not there.
    """
    blocks = _READERS[place.declared.type](place, capture, name, wanted)
    try:
        for block in blocks:
            if block.last > after:
                yield block
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise SourceUnavailableError(f"file {name} cannot be read", detail=str(error)) from error
        raise Unreadable(" ".join(str(error).split())) from error


# ---------------------------------------------------------------- CSV


@dataclass
class _Skipped:
    """Rows that have too few or too many fields, by their numbers; Arrow tells of them ahead of the rows after them."""

    rows: list[tuple[int, str, str]] = field(default_factory=list)

    def __call__(self, row: pacsv.InvalidRow) -> str:
        reason = f"it has {row.actual_columns} fields in place of {row.expected_columns}"
        self.rows.append((int(row.number), reason, str(row.text)))
        return "skip"


def _csv(place: Directory, capture: Capture, name: str, wanted: Wanted) -> Iterator[Block]:
    declared, skipped = place.declared, _Skipped()
    known = _csv_names(place, name)
    if not known:
        return
    has_header = value(declared, "header").lower() == "true"
    if has_header:
        picked, fixed = _picked(known, wanted, name)
    else:
        picked, fixed = [known[n] for n in wanted.by_position(capture, len(known))], {}
    asked = list(dict.fromkeys(each for each in picked if each is not None))
    convert = pacsv.ConvertOptions(
        column_types={each: pa.binary() for each in known},  # what is no UTF-8 concerns its row alone
        include_columns=asked,
        null_values=[value(declared, "null")],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    number = 1 if has_header else 0
    with place.stream(name) as stream, _csv_reader(stream, declared, convert, skipped) as batches:
        for batch in batches:
            block = _csv_block(batch, number, skipped, picked, fixed, wanted, declared)
            number = block.last
            yield block
    if skipped.rows:
        yield Block(_nothing(wanted), skipped.rows, skipped.rows[-1][0])


def _csv_reader(
    stream: Any, declared: DeclaredSource, convert: pacsv.ConvertOptions, skipped: Callable[[Any], str]
) -> pacsv.CSVStreamingReader:
    quote, escape = value(declared, "quote"), value(declared, "escape")
    has_header = value(declared, "header").lower() == "true"
    return pacsv.open_csv(
        stream,
        pacsv.ReadOptions(
            use_threads=False, block_size=_BLOCK_BYTES, autogenerate_column_names=not has_header
        ),
        pacsv.ParseOptions(
            delimiter=value(declared, "delimiter").replace("\\t", "\t"),
            quote_char=quote or False,
            escape_char=escape or False,
            newlines_in_values=bool(quote),
            invalid_row_handler=skipped,
        ),
        convert,
    )


def _csv_names(place: Directory, name: str) -> list[str]:
    """The names of a file's columns; none where it has no rows."""
    try:
        with (
            place.stream(name) as stream,
            _csv_reader(stream, place.declared, pacsv.ConvertOptions(), _Skipped()) as batches,
        ):
            return list(batches.schema.names)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return []
        raise


def _csv_block(
    batch: pa.RecordBatch,
    before: int,
    skipped: _Skipped,
    picked: Sequence[str | None],
    fixed: Mapping[str, str | None],
    wanted: Wanted,
    declared: DeclaredSource,
) -> Block:
    """The block that begins behind row number `before`."""
    numbers, bad, gone = [], [], skipped.rows
    number, n = before, 0
    for _ in range(len(batch)) if gone else ():
        number += 1
        while n < len(gone) and gone[n][0] == number:
            bad.append(gone[n])
            number, n = number + 1, n + 1
        numbers.append(number)
    skipped.rows = gone[n:]
    last = number if numbers else before + len(batch)
    rows = _assembled(batch, picked, fixed, wanted)
    made, why = fit(rows, wanted.columns, wanted.required, value(declared, "time_zone"))
    bad += [
        (numbers[at] if numbers else before + 1 + at, reason, _shown(rows, at)) for at, reason in why.items()
    ]
    return Block(made, sorted(bad), last)


# ---------------------------------------------------------------- Parquet


def _parquet(place: Directory, capture: Capture, name: str, wanted: Wanted) -> Iterator[Block]:
    del capture
    number = 0
    with place.file(name) as source, pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        picked, fixed = _picked(file.schema_arrow.names, wanted, name)
        asked = list(dict.fromkeys(each for each in picked if each is not None))
        for batch in file.iter_batches(batch_size=_BLOCK_ROWS, columns=asked):
            rows = _assembled(batch, picked, fixed, wanted)
            made, why = fit(rows, wanted.columns, wanted.required)
            bad = [(number + at + 1, reason, _shown(rows, at)) for at, reason in why.items()]
            number += len(batch)
            yield Block(made, sorted(bad), number)


# ---------------------------------------------------------------- JSON lines


def _json(place: Directory, capture: Capture, name: str, wanted: Wanted) -> Iterator[Block]:
    """By Python's own parser: Arrow's crashes over a line that is `null`, and does not say which row it cannot read."""
    del capture
    values: list[list[Any]] = []
    bad: list[tuple[int, str, str]] = []
    fixed, number, size = _fixed_values(_partitions(name, wanted), wanted), 0, 0
    with place.stream(name) as stream:
        for number, line in enumerate(io.BufferedReader(stream), 1):
            if not line.strip():
                continue
            size += len(line)
            try:
                values.append(_json_row(object_of(line), fixed, wanted))
            except Unreadable as reason:
                bad.append((number, str(reason), line.decode("utf-8", "replace").rstrip("\r\n")))
            if size >= _BLOCK_BYTES or len(values) >= _BLOCK_ROWS:
                yield Block(_json_rows(values, wanted), bad, number)
                values, bad, size = [], [], 0
    yield Block(_json_rows(values, wanted), bad, number)


def _fixed_values(texts: Mapping[str, str | None], wanted: Wanted) -> dict[str, Any]:
    """What the names of directories say, in the types of the columns."""
    found = {}
    for name, column in zip(wanted.names, wanted.columns):
        if name in texts:
            made, why = fit(pa.table({column.name: pa.array([texts[name]], pa.string())}), [column], ())
            if why:
                raise Unreadable(why[0])
            found[name] = made.column(0)[0].as_py()
    return found


def _json_row(given: Mapping[str, Any], fixed: Mapping[str, Any], wanted: Wanted) -> list[Any]:
    row = [
        fixed[name] if name in fixed else value_of(given, name, column)
        for name, column in zip(wanted.names, wanted.columns)
    ]
    for found, column in zip(row, wanted.columns):
        if found is None and column.name in wanted.required:
            raise Unreadable(f"its {column.name} is NULL")
    return row


def _json_rows(values: Sequence[Sequence[Any]], wanted: Wanted) -> pa.Table:
    if not values:
        return _nothing(wanted)
    kinds = [arrow_type(c.type) for c in wanted.columns]
    arrays = [array(some, kind) for some, kind in zip(zip(*values), kinds)]
    return pa.table(arrays, names=[c.name for c in wanted.columns])


# ---------------------------------------------------------------- parts

_READERS: Mapping[str, Callable[[Directory, Capture, str, Wanted], Iterator[Block]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}


def _picked(
    known: Sequence[str], wanted: Wanted, name: str
) -> tuple[list[str | None], dict[str, str | None]]:
    """The file's names of the columns, in whatever case, None for those that its directories' names have; and these."""
    fixed = _partitions(name, wanted)
    by_lower = {each.lower(): each for each in known}
    missing = [each for each in wanted.names if each.lower() not in by_lower and each not in fixed]
    if missing:
        raise Unreadable(f"it has no column {missing[0]}, but {', '.join(known)}")
    return [by_lower.get(each.lower()) for each in wanted.names], fixed


def _partitions(name: str, wanted: Wanted) -> dict[str, str | None]:
    """What directories that are called `column=value` say of all rows of a file."""
    if "=" not in name.rpartition("/")[0]:
        return {}
    hive = ds.HivePartitioning(pa.schema([(each, pa.string()) for each in wanted.names]))
    found: dict[str, str | None] = ds.get_partition_keys(hive.parse(f"/{name.rpartition('/')[0]}/"))
    return found


def _assembled(
    batch: pa.RecordBatch, picked: Sequence[str | None], fixed: Mapping[str, str | None], wanted: Wanted
) -> pa.Table:
    """The columns in the order of ours, as the file has them."""
    arrays = [
        repeated(fixed[name], pa.string(), len(batch)) if each is None else batch.column(each)
        for name, each in zip(wanted.names, picked)
    ]
    return pa.table(arrays, names=[c.name for c in wanted.columns])


def _nothing(wanted: Wanted) -> pa.Table:
    return pa.schema([(c.name, arrow_type(c.type)) for c in wanted.columns]).empty_table()


def _shown(rows: pa.Table, at: int) -> str:
    (row,) = rows.slice(at, 1).to_pylist()
    plain = {name: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for name, v in row.items()}
    return json.dumps(plain, default=str, ensure_ascii=False)
