"""The result of a continuous query as a table that other queries read by the query's name.

The table (`ContinuousQuery.relation`) is a versioned table like any other: the result at the version of its creation,
then the change rows of every refresh, written in the refresh's own catalog transaction. So to those who read it, a
query is a table whose commits are the refreshes of the query, at the versions of the commits that they process.

A result with a key has the delta log's change rows under the key. The rows of a multiset get hidden identities here:
an inserted row a new one, a deleted row that of the newest of the rows equal to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.algebra.emit import quote
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, DELETE, INSERT, ROW_ID, SEQUENCE
from cq_engine.catalog.model import PARTIAL, ContinuousQuery, DataFile, VersionedTable
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.errors import RefreshError
from cq_engine.delta.partial.model import complete_changes
from cq_engine.planner.comparable import comparable
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import fresh_name, run_sql
from cq_engine.spark.widths import Size, cores, file_count, size_of_files
from cq_engine.storage.data_files import write_files
from cq_engine.storage.file_look_ups import restriction
from cq_engine.storage.rows import change_columns, conform

__all__ = [
    "change_files",
    "change_rows",
    "change_width",
    "completed_files",
    "few_changes",
    "first_rows",
    "first_rows_in_memory",
    "write_changes",
]


def first_rows(relation: VersionedTable, result: DataFrame) -> DataFrame:
    """The rows of a result as the physical rows of its table.

    Identities count down from −1: those of later rows come from the catalog and count up from 1.
    """
    if not relation.has_row_id:
        return result
    return result.withColumn(ROW_ID, f.lit(-1).cast("bigint") - f.monotonically_increasing_id())


def first_rows_in_memory(relation: VersionedTable, result: pa.Table) -> pa.Table:
    """The same of rows in memory."""
    if not relation.has_row_id:
        return result
    return result.append_column(ROW_ID, pa.array(range(-1, -1 - result.num_rows, -1), pa.int64()))


def change_rows(services: Services, relation: VersionedTable, log: pa.Table, a: int) -> pa.Table:
    """The table's change rows for rows of the delta log that follow version `a`, both in Arrow."""
    if relation.has_row_id and not pc.any(pc.equal(log.column(CHANGE_TYPE), DELETE)).as_py():
        first = services.catalog.reserve_row_ids(relation.id, log.num_rows)
        log = log.append_column(ROW_ID, pa.array(range(first, first + log.num_rows), pa.int64()))
    elif relation.has_row_id:
        numbered = log.append_column(_NUMBER.name, pa.array(range(1, log.num_rows + 1), pa.int64()))
        rows = services.reader.frame(numbered, [*relation.columns, *_LOGGED, _NUMBER])
        for rounded in (False, True):
            log = to_arrow(_identify(services, relation, rows, log.num_rows, log.num_rows, a, rounded))
            if not log.column(ROW_ID).null_count:
                break
        else:
            raise _unknown_row_error(relation)
    return conform(log, change_columns(relation))


def change_files(
    services: Services, relation: VersionedTable, log: Sequence[DataFile], a: int, attempt: Attempt
) -> Sequence[DataFile]:
    """The same for a delta log in files; with a key these are the log's own files."""
    if not relation.has_row_id:
        return log
    count = sum(file.rows for file in log)
    rows, last = _numbered(services, services.reader.files(log, [*relation.columns, *_LOGGED]))
    shown = [quote(c.name) for c in change_columns(relation)]
    for rounded in (False, True):
        numbered = _identify(services, relation, rows, count, last, a, rounded)
        directory = f"{attempt.directory(relation, 'log')}/{relation.id}{'-rounded' if rounded else ''}"
        width = change_width(services, size_of_files(log))
        ordered = numbered.select(*shown).repartitionByRange(width, ROW_ID).sortWithinPartitions(ROW_ID)
        files = write_files(
            services.catalog.store, ordered, directory, [ROW_ID, COMMIT_VERSION], services.limits
        )
        written = services.reader.files(files, change_columns(relation))
        if written.where(f"{ROW_ID} IS NULL").limit(1).count() == 0:
            return files
    raise _unknown_row_error(relation)


def few_changes(
    services: Services, query: ContinuousQuery, relation: VersionedTable, log: pa.Table, a: int
) -> pa.Table:
    """The table's change rows for rows of the delta log in Arrow, whatever the query's verdict."""
    if query.verdict == PARTIAL:
        rows = services.reader.frame(log, change_columns(query.result))
        return conform(to_arrow(completed(services, relation, rows, a)), change_columns(relation))
    return change_rows(services, relation, log, a)


def change_width(services: Services, size: Size) -> int:
    """By how many tasks, and into how many files, change rows are written."""
    limits = services.limits
    return file_count(size, cores(services.spark()), limits, limits.staged_file_rows)


def completed(services: Services, relation: VersionedTable, log: DataFrame, a: int) -> DataFrame:
    """The table's change rows for rows of a delta log that may be partial: what is missing is looked up in the table."""
    image = services.reader.image(relation, a)
    keys = [quote(name) for name in relation.identity]
    wanted = log.select(*keys).distinct()
    rows, known = fresh_name("log"), fresh_name("known")
    text = complete_changes(rows, known, [c.name for c in relation.columns], relation.identity, a)
    relations = {rows: log, known: image.join(wanted, list(relation.identity), "left_semi")}
    return run_sql(services.spark(), text, relations)


def completed_files(
    services: Services, relation: VersionedTable, log: Sequence[DataFile], a: int, attempt: Attempt
) -> Sequence[DataFile]:
    """The same for a delta log in files."""
    rows = completed(services, relation, services.reader.files(log, [*relation.columns, *_LOGGED]), a)
    directory = f"{attempt.directory(relation, 'log')}/{relation.id}"
    keys = [f.col(quote(name)) for name in relation.identity]
    shown = rows.select(*(f.col(quote(c.name)) for c in change_columns(relation)))
    width = change_width(services, size_of_files(log))
    ordered = shown.repartitionByRange(width, *keys).sortWithinPartitions(*keys)
    stats = [*relation.identity, COMMIT_VERSION]
    return write_files(services.catalog.store, ordered, directory, stats, services.limits)


def write_changes(
    unit: UnitOfWork,
    table: VersionedTable,
    low: int,
    high: int,
    changes: pa.Table | Sequence[DataFile],
    kinds: frozenset[str],
) -> None:
    """Change rows of the versions [low, high], in memory or in files; `kinds` are those in the files."""
    if isinstance(changes, pa.Table):
        unit.add_changes(table, low, high, changes)
    else:
        unit.add_change_files(table, low, high, changes, kinds)


_LOGGED = (
    Column(CHANGE_TYPE, "string"),
    Column(COMMIT_VERSION, "bigint"),
    Column(SEQUENCE, "bigint"),
)


_NUMBER = Column("_cq_number", "bigint")
"""Of a row in a delta log, from 1."""


def _numbered(services: Services, log: DataFrame) -> tuple[DataFrame, int]:
    """A log without a key with `_NUMBER`, and the last number: its versions are put one behind the other, so that rows are numbered
    where they are. There are gaps where there are between the numbers of a version's rows."""
    last = f.max(SEQUENCE).alias("last")
    lasts = to_arrow(log.groupBy(COMMIT_VERSION).agg(last)).sort_by(COMMIT_VERSION)
    until = pc.cumulative_sum(lasts.column("last")).combine_chunks()
    before = lasts.set_column(1, _NUMBER.name, pc.subtract(until, lasts.column("last")))
    known = services.reader.frame(before, [Column(COMMIT_VERSION, "bigint"), _NUMBER])
    numbered = log.join(f.broadcast(known), COMMIT_VERSION).withColumn(
        _NUMBER.name, f.col(_NUMBER.name) + f.col(SEQUENCE)
    )
    return numbered, until[-1].as_py() if len(until) else 0


def _identify(
    services: Services, relation: VersionedTable, log: DataFrame, count: int, last: int, a: int, rounded: bool
) -> DataFrame:
    """`log`, whose `count` rows have a `_NUMBER` up to `last`, with `_row_id`; NULL where a deleted row is not known.

    With `rounded`, doubles are compared as floats: sums that were added up in another order differ in the last digits.

    Equal rows are a stack: an insert puts one on top, a delete takes the top one off. Both have the level that they
    put or take, and a deleted row is the last one that was put at its level. A delta never has both of one row at one
    version (SEMANTICS §2, law 2).
    """
    names = [c.name for c in relation.columns]
    first = services.catalog.reserve_row_ids(relation.id, last)
    changes, image = fresh_name("log"), fresh_name("image")
    gone = log.where(f.col(CHANGE_TYPE) == DELETE)
    relations = {
        changes: log,
        image: services.reader.image(relation, a, _image_restriction(services, gone, relation, count)),
    }
    shown = ", ".join(map(quote, names))
    compared = ", ".join(f"{_comparable(c, rounded)} AS _k{i}" for i, c in enumerate(relation.columns))
    stack = ", ".join(f"_k{i}" for i in range(len(names)))
    order = f"ORDER BY {COMMIT_VERSION}, {SEQUENCE} ROWS UNBOUNDED PRECEDING"
    is_new = f"{CHANGE_TYPE} = '{INSERT}'"
    text = f"""
        WITH steps AS (
            SELECT {shown}, {compared}, {CHANGE_TYPE}, {COMMIT_VERSION}, {SEQUENCE},
                   if({is_new}, 1, -1) AS _sign, if({is_new}, {first - 1} + {_NUMBER.name}, CAST(NULL AS bigint)) AS _id
            FROM {changes}
            UNION ALL
            SELECT {shown}, {compared}, 'known', CAST({a} AS bigint), {ROW_ID}, 1, {ROW_ID} FROM {image}),
        levels AS (
            SELECT *, sum(_sign) OVER (PARTITION BY {stack} {order}) + if(_sign < 0, 1, 0) AS _level FROM steps)
        SELECT * FROM (
            SELECT {shown}, {CHANGE_TYPE}, {COMMIT_VERSION},
                   last_value(_id, true) OVER (PARTITION BY {stack}, _level {order}) AS {ROW_ID}
            FROM levels)
        WHERE {CHANGE_TYPE} <> 'known'"""
    return run_sql(services.spark(), text, relations)


def _image_restriction(
    services: Services, gone: DataFrame, relation: VersionedTable, count: int
) -> dict[str, pa.Array] | None:
    """What deleted rows have in the columns by which files and rows can be left out, where they are few."""
    columns = [c for c in relation.columns if can(c.type, Use.STATISTICS)]
    if count > services.limits.known_gone_rows or not columns:
        return None
    return restriction(to_arrow(gone.select(*(quote(c.name) for c in columns))), columns) or None


def _comparable(column: Column, rounded: bool) -> str:
    """The column in a form by which Spark can partition rows."""
    if rounded and column.type == "double":
        return f"CAST({quote(column.name)} AS float)"
    return comparable(quote(column.name), column.type)


def _unknown_row_error(relation: VersionedTable) -> RefreshError:
    return RefreshError(
        f"a row that left the result of {relation.name} is not among the rows kept for the queries that read it",
        hint=f"ALTER CONTINUOUS QUERY {relation.name} RESUME FROM NOW builds them again",
    )
