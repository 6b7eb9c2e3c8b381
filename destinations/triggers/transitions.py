"""What a trigger's statements see of the deltas of one commit: the tables `inserted`, `deleted` and `updated`.

They have the result columns of the query; `updated` has the new values under them and the old ones as `old_<column>`. A
WHEN sees each delta as one row: the columns (of a D those that left), `old_<column>`, and what its functions give. Few
deltas are Arrow rows on the driver, many stay in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    DELETES,
    SEQUENCE,
    UPDATE_PAIR,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
)
from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import arrow_type
from cq_engine.destinations.layout import marker_of, shown_columns
from cq_engine.destinations.log import read_frame
from cq_engine.destinations.pairs import MARKERS_FOR, new_column, old_column, select_markers
from cq_engine.spark.sql import quote

__all__ = [
    "DELTAS",
    "TRANSITIONS",
    "Given",
    "check_names",
    "deltas",
    "empty",
    "many_deltas",
    "tables",
    "tables_of_many",
]

TRANSITIONS = ("inserted", "deleted", "updated")
DELTAS = "_cq_deltas"
"""What a WHEN is asked of."""
Given = Mapping[str, Callable[[], DataFrame]]
"""Relations by name."""
_HEAD = (
    Column("_cq_row", "bigint"), Column("_cq_marker", "string"), Column("_cq_version", "bigint"),
    Column("_cq_time", "timestamp"),
)  # fmt: skip


def _layouts(query: ContinuousQuery) -> dict[str, tuple[str, list[tuple[str, Column]]]]:
    """Of each table what its deltas are, and its columns with the wide columns that they come from."""
    columns = query.result.columns[: query.width]
    new = [(new_column(n), Column(c.name, c.type)) for n, c in enumerate(columns)]
    gone = [(old_column(n), Column(c.name, c.type)) for n, c in enumerate(columns)]
    old = [(old_column(n), Column(f"old_{c.name}", c.type)) for n, c in enumerate(columns)]
    return dict(zip(TRANSITIONS, (("I", new), ("D", gone), ("U", [*new, *old]))))


def check_names(query: ContinuousQuery) -> None:
    """Raises AnalysisError where `updated` would have two columns of one name."""
    names = [c.name.lower() for c in query.result.columns[: query.width]]
    for name in names:
        if f"old_{name}" in names:
            raise AnalysisError(
                f"{query.name} has a column old_{name}, as updated has for the old values of {name}",
                detail="a trigger sees the old values of a column under this name",
                hint=f"give one of the two columns another name: SELECT old_{name} AS ...",
            )


def empty(query: ContinuousQuery) -> pa.Table:
    """No deltas, in the wide layout."""
    columns = [("marker", pa.string()), ("version", pa.int64()), ("sequence", pa.int64())]
    columns.append(("time", arrow_type("timestamp")))
    for name in (new_column, old_column):
        columns += [(name(n), arrow_type(c.type)) for n, c in enumerate(query.result.columns)]
    return pa.schema(columns).empty_table()


# ---------------------------------------------------------------- on the driver


def tables(services: Services, query: ContinuousQuery, wide: pa.Table) -> Given:
    """The three tables of deltas in the wide layout."""

    def table(marker: str, columns: Iterable[tuple[str, Column]]) -> DataFrame:
        names, shown = zip(*columns)
        rows = select_markers(wide, marker).select(list(names)).rename_columns([c.name for c in shown])
        return services.reader.frame(rows, shown)

    return {name: partial(table, *layout) for name, layout in _layouts(query).items()}


def deltas(
    services: Services, query: ContinuousQuery, wide: pa.Table, times: Mapping[int, datetime]
) -> Given:
    """What a WHEN sees of deltas in the wide layout, by the place of each."""

    def table() -> DataFrame:
        versions = wide.column("version")
        moments = pa.array([times[version] for version in versions.to_pylist()], arrow_type("timestamp"))
        shown = _layouts(query)["updated"][1]
        values = shown_columns(wide, range(query.width))
        values += [wide.column(name) for name, _ in shown[query.width :]]
        head = [pa.array(range(len(wide)), pa.int64()), wide.column("marker"), versions, moments]
        columns = [*_HEAD, *(column for _, column in shown)]
        rows = pa.Table.from_arrays([*head, *values], names=[c.name for c in columns])
        return services.reader.frame(rows, columns)

    return {DELTAS: table}


# ---------------------------------------------------------------- in Spark


def many_deltas(services: Services, query: ContinuousQuery, version: int, time: datetime) -> DataFrame:
    """The same of all deltas of a version, as executors read them."""
    changes = read_frame(services, query, Cursor(query.name, "", version - 1), version, query.markers)
    names = [c.name for c in query.result.columns[: query.width]]
    kind = f.col(CHANGE_TYPE)
    plain = [f.col(quote(name)).alias(f"_n{n}") for n, name in enumerate(names)]
    gone = kind.isin(*DELETES)
    old = [f.when(gone, f.col(quote(name))).alias(f"_o{n}") for n, name in enumerate(names)]
    single = changes.where(~kind.isin(*UPDATE_PAIR)).select(kind, *plain, *old)
    before = changes.where(kind == UPDATE_PREIMAGE).select(
        f.col(SEQUENCE).alias("_old_sequence"),
        *(f.col(quote(name)).alias(f"_o{n}") for n, name in enumerate(names)),
    )
    after = changes.where(kind == UPDATE_POSTIMAGE).select(kind, f.col(SEQUENCE), *plain)
    updated = after.join(before, f.col(SEQUENCE) == f.col("_old_sequence"))
    rows = single.unionAll(updated.select(*single.columns))
    head = (f.lit(0).cast("bigint"), marker_of(kind), f.lit(version).cast("bigint"), f.lit(time))
    return rows.select(
        *(value.alias(column.name) for value, column in zip(head, _HEAD)),
        *(f.col(f"_n{n}").alias(name) for n, name in enumerate(names)),
        *(f.col(f"_o{n}").alias(f"old_{name}") for n, name in enumerate(names)),
    )


def tables_of_many(query: ContinuousQuery, rows: DataFrame) -> Given:
    """The three tables of rows of `many_deltas`."""

    def table(marker: str, columns: Iterable[tuple[str, Column]]) -> DataFrame:
        return rows.where(f.col("_cq_marker").isin(*MARKERS_FOR[marker])).select(
            *(f.col(quote(c.name)) for _, c in columns)
        )

    return {name: partial(table, *layout) for name, layout in _layouts(query).items()}
