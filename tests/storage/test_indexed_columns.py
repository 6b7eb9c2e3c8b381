"""Look-ups in copies of columns find what a scan with the same condition finds, whatever is looked up."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from cq_engine.core.types import arrow_schema
from cq_engine.storage.indexed_columns import IndexedColumns
from cq_engine.storage.rows import identity_keys
from tests.maintenance.oracle import check_law

COLUMNS = (
    Column("ordered", "bigint"),
    Column("shuffled", "int"),
    Column("few", "smallint"),
    Column("gaps", "bigint"),
    Column("word", "string"),
    Column("day", "date"),
    Column("price", "decimal(12,2)"),
    Column("weight", "double"),
    Column("tags", "array<string>"),
)
ROWS = 3_000
DAY = dt.date(2026, 1, 1)
MUCH = 1 << 30


def make(rng: random.Random, count: int = ROWS) -> pa.Table:
    """Rows of all kinds of columns: in order, in none, of few values, with NULLs."""

    def gaps(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    values = {
        "ordered": sorted(rng.randrange(-count, count) for _ in range(count)),
        "shuffled": [rng.randrange(-(2**31), 2**31) if rng.random() < 0.1 else rng.randrange(count) for _ in range(count)],
        "few": [rng.randrange(2) for _ in range(count)],
        "gaps": [gaps(rng.randrange(count)) for _ in range(count)],
        "word": [gaps(f"w{rng.randrange(count // 3)}") for _ in range(count)],
        "day": [DAY + dt.timedelta(rng.randrange(count)) for _ in range(count)],
        "price": [gaps(Decimal(rng.randrange(count)) / 100) for _ in range(count)],
        "weight": [rng.random() for _ in range(count)],
        "tags": [[f"t{rng.randrange(5)}"] for _ in range(count)],
    }  # fmt: skip
    return pa.table(values, schema=arrow_schema(COLUMNS))


def restrictions(rng: random.Random, rows: pa.Table) -> dict[str, pa.Array]:
    """Values that are there, values that are not, NULL, values beyond the column's type; of one or two columns."""
    found = {}
    for column in rng.sample(COLUMNS, rng.choice([1, 1, 2])):
        values = rng.sample(rows.column(column.name).to_pylist(), rng.choice([0, 1, 5, 40, 1_000]))
        kind = rows.schema.field(column.name).type
        if pa.types.is_integer(kind):
            values += [rng.randrange(-9, 9_999) for _ in range(rng.choice([0, 3]))]
            kind = kind if rng.random() < 0.5 else pa.int64()
        if rng.random() < 0.2:
            values.append(None)
        found[column.name] = pa.array(values, kind)
    return found


def expected(rows: pa.Table, restrict: dict[str, pa.Array]) -> list[int]:
    """Row numbers by plain Python; columns whose equality Arrow does not have restrict nothing."""
    compared = {n: v for n, v in restrict.items() if n not in ("weight", "tags")}
    wanted = {name: set(values.to_pylist()) for name, values in compared.items()}
    lists = {name: rows.column(name).to_pylist() for name in wanted}
    return [n for n in range(rows.num_rows) if all(lists[name][n] in wanted[name] for name in wanted)]


@pytest.fixture
def indexed() -> Any:
    made = IndexedColumns(DEFAULT_LIMITS)
    yield made
    made.close()


def write(rows: pa.Table, path: Path, columns: IndexedColumns, keys: list[str]) -> str:
    pq.write_table(rows, path, row_group_size=700)
    columns.note_decoded(str(path), 1, rows.num_rows, rows.num_rows, COLUMNS, keys)
    return str(path)


@pytest.mark.parametrize("seed", range(6))
def test_as_a_scan(indexed: IndexedColumns, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = make(rng)
    keys = [c.name for c in COLUMNS if rng.random() < 0.8]
    path = write(rows, tmp_path / "a.parquet", indexed, keys)
    assert indexed.rows(path, COLUMNS, {}, ROWS) is None
    assert indexed.fill(MUCH) == 1
    shown = identity_keys(rows, COLUMNS)
    for _ in range(150):
        restrict = restrictions(rng, rows)
        found = indexed.rows(path, COLUMNS, restrict, ROWS)
        assert found is not None
        assert found.schema.equals(arrow_schema(COLUMNS))
        wanted = [shown[n] for n in expected(rows, restrict)]
        assert identity_keys(found, COLUMNS) == wanted, {n: v.to_pylist()[:5] for n, v in restrict.items()}
        limit = len(wanted) - 1
        assert limit < 0 or indexed.rows(path, COLUMNS, restrict, limit) is None, "more than the limit"


def test_places_beyond_the_bound_are_not_looked_up(tmp_path: Path) -> None:
    """Either a look-up gives what a scan gives, or the file is read."""
    rng = random.Random(1)
    rows = make(rng)
    indexed = IndexedColumns(replace(DEFAULT_LIMITS, column_copy_places=0))
    path = write(rows, tmp_path / "a.parquet", indexed, [c.name for c in COLUMNS])
    assert indexed.fill(MUCH) == 1
    shown, given = identity_keys(rows, COLUMNS), 0
    for _number in range(150):
        restrict = restrictions(rng, rows)
        wanted = [shown[n] for n in expected(rows, restrict)]
        found = indexed.rows(path, COLUMNS, restrict, max(1, len(wanted)))
        assert found is None or identity_keys(found, COLUMNS) == wanted
        given += found is not None
    indexed.close()
    assert 0 < given < 150


def test_no_copies_where_the_disk_is_nearly_full(tmp_path: Path) -> None:
    indexed = IndexedColumns(replace(DEFAULT_LIMITS, column_copy_share=2**60))
    path = write(make(random.Random(1)), tmp_path / "a.parquet", indexed, ["ordered"])
    assert indexed.fill(MUCH) == 0
    assert indexed.rows(path, COLUMNS, {}, ROWS) is None
    indexed.close()


def test_only_the_columns_that_were_read(indexed: IndexedColumns, tmp_path: Path) -> None:
    rows = make(random.Random(1))
    path = tmp_path / "a.parquet"
    pq.write_table(rows, path)
    first, more = COLUMNS[:2], COLUMNS[:3]
    indexed.note_decoded(str(path), 1, ROWS // 2, ROWS, first, ["ordered"])
    assert indexed.fill(MUCH) == 0, "not yet"
    indexed.note_decoded(str(path), 1, ROWS // 2, ROWS, first, ["ordered"])
    assert indexed.fill(MUCH) == 1
    restrict = {"ordered": pa.array([rows.column("ordered")[7].as_py()])}
    assert indexed.rows(str(path), more, restrict, ROWS) is None
    assert indexed.rows(str(path), [Column("ordered", "int"), first[1]], restrict, ROWS) is None, (
        "another type"
    )
    indexed.note_decoded(str(path), 1, 1, ROWS, more, ["ordered"])
    assert indexed.fill(MUCH) == 1
    assert indexed.fill(MUCH) == 0
    assert indexed.rows(str(path), more, restrict, ROWS) is not None


def test_files_of_a_table_that_has_copies_get_theirs_at_once(indexed: IndexedColumns, tmp_path: Path) -> None:
    rng = random.Random(2)
    write(make(rng), tmp_path / "a.parquet", indexed, ["ordered"])
    assert indexed.fill(MUCH) == 1
    pq.write_table(make(rng), tmp_path / "b.parquet")
    indexed.note_decoded(str(tmp_path / "b.parquet"), 2, 1, ROWS, COLUMNS, ["ordered"])
    assert indexed.fill(MUCH) == 0, "another table"
    indexed.note_decoded(str(tmp_path / "b.parquet"), 1, 1, ROWS, COLUMNS, ["ordered"])


def test_files_that_take_the_place_of_others_get_their_copies(
    indexed: IndexedColumns, tmp_path: Path
) -> None:
    rng = random.Random(6)
    gone, stays = (write(make(rng), tmp_path / f"{n}.parquet", indexed, ["shuffled"]) for n in "ab")
    new = str(tmp_path / "c.parquet")
    pq.write_table(make(rng), new)
    indexed.follow(1, lambda: {new: ROWS})
    assert indexed.fill(MUCH) == 2, "nobody has looked into anything"
    indexed.follow(2, lambda: {new: ROWS})
    assert indexed.fill(MUCH) == 0, "another table"
    indexed.follow(1, lambda: {new: ROWS, stays: ROWS})
    assert indexed.fill(MUCH) == 1
    there = [indexed.rows(path, COLUMNS, {}, ROWS) is not None for path in (gone, stays, new)]
    assert there == [False, True, True]
    assert indexed._files[new].copies[COLUMNS[1]].places is not None


def test_the_budget(indexed: IndexedColumns, tmp_path: Path) -> None:
    """The file that was used last stays; what is removed lies nowhere; 'off' removes all."""
    rng = random.Random(3)
    paths = [write(make(rng), tmp_path / f"{n}.parquet", indexed, []) for n in range(3)]
    size = make(rng).nbytes
    indexed.fill(int(2.7 * size))
    there = [indexed.rows(path, COLUMNS, {}, ROWS) is not None for path in paths]
    assert there == [False, True, True]
    directory = indexed._directory
    assert directory is not None
    assert sum(file.stat().st_size for file in directory.iterdir()) < 2.7 * size
    assert indexed.fill(0) == 0
    assert not directory.exists()
    assert indexed.rows(paths[2], COLUMNS, {}, ROWS) is None


def test_what_has_no_room_is_not_tried_again_and_again(indexed: IndexedColumns, tmp_path: Path) -> None:
    """Only after look-ups have decoded as much as it has once more."""
    rng = random.Random(7)
    paths = [write(make(rng), tmp_path / f"{n}.parquet", indexed, []) for n in range(2)]
    budget = int(1.7 * make(rng).nbytes)
    assert indexed.fill(budget) == 2, "the second takes the place of the first"
    for _ in range(3):
        indexed.follow(1, lambda: dict.fromkeys(paths, ROWS))
        assert indexed.fill(budget) == 0
    indexed.note_decoded(paths[0], 1, ROWS, ROWS, COLUMNS, [])
    assert indexed.fill(budget) == 1
    assert [indexed.rows(path, COLUMNS, {}, ROWS) is not None for path in paths] == [True, False]


def test_a_file_that_is_gone(indexed: IndexedColumns, tmp_path: Path) -> None:
    path = Path(write(make(random.Random(4)), tmp_path / "a.parquet", indexed, []))
    path.unlink()
    assert indexed.fill(MUCH) == 0
    assert indexed.rows(str(path), COLUMNS, {}, ROWS) is None


@pytest.mark.parametrize("searched_for", [DEFAULT_LIMITS.column_copy_search, 20])
def test_refreshes_and_commits_over_copies(spark: SparkSession, warehouse: Path, searched_for: int) -> None:
    """A join by a foreign key, a primary key that commits check, merges that replace the files; both ways to find."""
    limits = Limits(small_rows=-1, column_copy_search=searched_for)
    query = "SELECT t.k, t.c, t.x, d.n FROM t t JOIN d d ON t.c = d.k"
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as engine:
        engine.execute("CREATE TABLE d (k INT PRIMARY KEY, n STRING)")
        engine.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, c INT, x DECIMAL(9,2)) CLUSTER BY (k)")
        engine.execute("INSERT INTO d SELECT id, concat('n', id) FROM range(50)")
        engine.execute("INSERT INTO t SELECT id, id * 7 % 60, id / 4 FROM range(500)")
        engine.compact("t")
        engine.compact("d")
        engine.execute(f"CREATE CONTINUOUS QUERY joined ON DEMAND START FROM SNAPSHOT AS {query}")
        since = engine.catalog.newest_version
        for n in range(4):
            engine.execute(f"UPDATE d SET n = 'm{n}' WHERE k IN ({n}, {n + 9})")
            engine.execute(f"DELETE FROM t WHERE k = {11 * n}")
            engine.execute(f"INSERT INTO t VALUES ({1_000 + n}, {n}, 1), ({11 * n}, 3, 2)")
            with pytest.raises(cq_engine.CQError, match="exists already"):
                engine.execute(f"INSERT INTO t VALUES ({11 * n + 1}, 1, 1)")
            engine.refresh("joined")
            engine.maintain()
            if n == 2:
                engine.compact("t")
        assert sum(bool(file.copies) for file in engine.reader.look_ups.indexed._files.values()) >= 2
        check_law(engine, "joined", query, since)
    assert engine.reader.look_ups.indexed._directory is None


@pytest.mark.parametrize(
    ("name", "value"), [("look_up_cache", "much"), ("maintenance", "never"), ("retention", "long")]
)
def test_values_that_an_option_does_not_have(
    spark: SparkSession, warehouse: Path, name: str, value: str
) -> None:
    with pytest.raises(AnalysisError, match=name):
        cq_engine.connect(warehouse, spark=spark, conf={name: value})
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, conf={"look_up_cache": "10MB"}) as engine:
        with pytest.raises(AnalysisError, match=name):
            engine.execute(f"SET {name} = '{value}'")
        engine.execute("SET look_up_cache = 'off'")
