"""Tables of Delta Lake as sources, against the tables themselves."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.decimal128(10, 2))])
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def engine(tmp_path: Path, once: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False) as opened:
        yield opened


def rows_of(dice: random.Random, keys: list[int]) -> pa.Table:
    rows = [{"k": k, "v": dice.choice(["a", "b", None]), "n": dice.choice([1, 2, None])} for k in keys]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def there(path: Path) -> list[dict[str, Any]]:
    rows = pa.table(DeltaTable(path).scan()).cast(SCHEMA).to_pylist()
    return sorted(rows, key=lambda row: row["k"])


def here(engine: Engine, table: str = "t") -> list[dict[str, Any]]:
    rows = engine.execute(f"SELECT k, v, n FROM {table}").to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["k"])


def write(dice: random.Random, path: Path) -> None:
    """One version of the table, of any kind."""
    table, known = DeltaTable(path), [row["k"] for row in there(path)]
    some = dice.sample(known, min(len(known), dice.randint(0, 3))) or [0]
    listed = f"k IN ({', '.join(map(str, some))})"
    match dice.choice(["append", "update", "delete", "move", "merge", "overwrite"]):
        case "append":
            fresh = [k for k in range(20) if k not in known][: dice.randint(1, 3)]
            write_deltalake(path, rows_of(dice, fresh), mode="append")
        case "update":
            table.update(predicate=listed, updates={"v": f"'{dice.randint(0, 9)}'"})
        case "delete":
            table.delete(listed)
        case "move":
            table.update(predicate=listed, updates={"k": "k + 20"})
        case "merge":
            source = rows_of(dice, sorted({*some, dice.randint(0, 19)}))
            merging = table.merge(source, "s.k = t.k", source_alias="s", target_alias="t")
            merging.when_matched_update_all().when_not_matched_insert_all().execute()
        case "overwrite":
            write_deltalake(path, rows_of(dice, dice.sample(range(20), 5)), mode="overwrite")


@pytest.mark.parametrize("feed", [FEED, {}], ids=["by its feed", "by comparing versions"])
def test_the_replica_is_the_table(engine: Engine, tmp_path: Path, feed: dict[str, str]) -> None:
    dice, path = random.Random(7), tmp_path / "lake" / "orders"
    write_deltalake(path, rows_of(dice, [1, 2, 3]), configuration=feed)
    engine.execute("CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2), PRIMARY KEY (k))")
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{tmp_path}/lake')")
    engine.execute("CREATE CAPTURE c INTO t FROM lake TABLE 'orders' USING LOG ON DEMAND")
    engine.refresh_capture("c")
    assert here(engine) == there(path)
    for _ in range(25):
        before = DeltaTable(path).version()
        for _ in range(dice.randint(1, 3)):
            write(dice, path)
        done = engine.refresh_capture("c")
        assert here(engine) == there(path)
        if feed and done.commit_versions:
            assert len(done.commit_versions) <= DeltaTable(path).version() - before
    assert engine.refresh_capture("c").commit_versions == ()


def test_copy_compares_versions_whatever_the_feed(engine: Engine, tmp_path: Path) -> None:
    dice, path = random.Random(3), tmp_path / "orders"
    write_deltalake(path, rows_of(dice, [1, 2, 3]), configuration=FEED)
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{path}')")
    engine.execute("CREATE TABLE loose (k BIGINT, v STRING, n DECIMAL(10, 2))")
    with pytest.raises(cq_engine.CQError, match="loose has no primary key"):
        engine.execute("CREATE CAPTURE c INTO loose FROM lake USING COPY ON DEMAND")
    engine.execute("CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2), PRIMARY KEY (k))")
    engine.execute("CREATE CAPTURE c INTO t FROM lake USING COPY ON DEMAND")
    for _ in range(4):
        assert len(engine.refresh_capture("c").commit_versions) <= 1
        assert here(engine) == there(path)
        write(dice, path)
        write(dice, path)


def test_every_version_is_a_commit_with_its_time(engine: Engine, tmp_path: Path) -> None:
    dice, path = random.Random(1), tmp_path / "orders"
    write_deltalake(path, rows_of(dice, [1]), configuration=FEED)
    engine.execute("CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2), PRIMARY KEY (k))")
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{path}')")
    engine.execute("CREATE CAPTURE c INTO t FROM lake USING LOG ON DEMAND")
    engine.refresh_capture("c")
    for k in (2, 3, 4):
        write_deltalake(path, rows_of(dice, [k]), mode="append")
    done = engine.refresh_capture("c")
    changes = engine.execute("SELECT k, _commit_version, _commit_timestamp FROM t CHANGES FROM VERSION 2")
    found = sorted(changes.to_arrow().to_pylist(), key=lambda row: row["k"])
    assert [(row["k"], row["_commit_version"]) for row in found] == list(zip((2, 3, 4), done.commit_versions))
    times = [entry["timestamp"] for entry in reversed(DeltaTable(path).history())]
    assert [round(row["_commit_timestamp"].timestamp() * 1000) for row in found] == times[1:]


def test_times_that_lie_before_our_newest_commit(engine: Engine, tmp_path: Path) -> None:
    dice, path = random.Random(1), tmp_path / "orders"
    write_deltalake(path, rows_of(dice, [1]), configuration=FEED)
    engine.execute(f"CREATE TABLE t (PRIMARY KEY (k)) FROM DELTA '{path}' ON DEMAND")
    engine.refresh_capture("t_capture")
    write_deltalake(path, rows_of(dice, [2]), mode="append")
    write_deltalake(path, rows_of(dice, [3]), mode="append")
    engine.execute("CREATE TABLE other (k INT)")
    engine.execute("INSERT INTO other VALUES (1)")
    done = engine.refresh_capture("t_capture")
    assert len(done.commit_versions) == 2
    times = [engine.catalog.timestamp(done.commit_versions[0] - 1 + n) for n in range(3)]
    assert times == [times[0]] * 3  # the nearest that they can have


def test_a_table_that_goes_back_is_compared(engine: Engine, tmp_path: Path) -> None:
    dice, path = random.Random(2), tmp_path / "orders"
    write_deltalake(path, rows_of(dice, [1, 2]), configuration=FEED)
    shutil.copytree(path, tmp_path / "backup")
    engine.execute("CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2), PRIMARY KEY (k))")
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{path}')")
    engine.execute("CREATE CAPTURE c INTO t FROM lake USING LOG ON DEMAND")
    engine.refresh_capture("c")
    write_deltalake(path, rows_of(dice, [3]), mode="append")
    engine.refresh_capture("c")
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    engine.refresh_capture("c")
    assert here(engine) == there(path)
    shutil.rmtree(path)
    write_deltalake(path, rows_of(dice, [5, 6]))  # another table in its place
    engine.refresh_capture("c")
    assert here(engine) == there(path)


def test_without_a_key_rows_are_only_added(engine: Engine, tmp_path: Path) -> None:
    dice, path = random.Random(3), tmp_path / "log"
    write_deltalake(path, rows_of(dice, [1, 1]), configuration=FEED)
    engine.execute("CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2))")
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{path}')")
    engine.execute("CREATE CAPTURE c INTO t FROM lake USING LOG ON DEMAND")
    engine.refresh_capture("c")
    write_deltalake(path, rows_of(dice, [1, 2]), mode="append")
    engine.refresh_capture("c")
    assert [row["k"] for row in here(engine)] == [1, 1, 1, 2]
    DeltaTable(path).delete("k = 2")
    with pytest.raises(cq_engine.SourceError, match="deleted or updated"):
        engine.refresh_capture("c")
    status = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]
    assert status["state"] == "FAILED"
    assert "deleted or updated" in status["error"]
    assert len(here(engine)) == 4


def test_continuous_queries_follow(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    write_deltalake(
        path, pa.Table.from_pylist([{"k": 1, "v": "a", "n": 1}], schema=SCHEMA), configuration=FEED
    )
    engine.execute("CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2), PRIMARY KEY (k))")
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{path}')")
    engine.execute("CREATE CAPTURE c INTO t FROM lake USING LOG ON DEMAND")
    engine.execute("CREATE CONTINUOUS QUERY q AS SELECT v, sum(n) AS s FROM t GROUP BY v")
    engine.refresh_capture("c")
    write_deltalake(path, pa.Table.from_pylist([{"k": 2, "v": "a", "n": 4}], schema=SCHEMA), mode="append")
    engine.refresh_capture("c")
    engine.refresh("q")
    assert [(delta.marker, delta.new[1]) for delta in engine.deltas("q")] == [("I", 1), ("U", 5)]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE SOURCE x TYPE dalta WITH (path = '/x')", "no type dalta"),
        ("CREATE SOURCE x TYPE delta", "needs the option path"),
        ("CREATE SOURCE x TYPE delta WITH (pth = '/x')", "no option pth"),
        ("CREATE CAPTURE c INTO t FROM lake USING TIMESTAMP (ts)", "USING TIMESTAMP is not for"),
        ("CREATE CAPTURE c INTO t FROM lake (kk AS k) USING LOG", "no column kk"),
        ("CREATE CAPTURE c INTO t FROM lake TABLE 'gone' USING LOG", "no Delta table at"),
        ("CREATE CAPTURE c INTO gone FROM lake USING LOG", "gone"),
        ("CREATE CAPTURE c INTO t FROM gone USING LOG", "gone"),
        ("CREATE CAPTURE c INTO t FROM lake USING LOG WITH (initail = 'none')", "no option initail"),
    ],
)
def test_what_does_not_fit(engine: Engine, tmp_path: Path, statement: str, said: str) -> None:
    write_deltalake(tmp_path / "orders", rows_of(random.Random(1), [1]), configuration=FEED)
    engine.execute("CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2), PRIMARY KEY (k))")
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{tmp_path}/orders')")
    with pytest.raises(cq_engine.CQError, match=said):
        engine.execute(statement)
    assert engine.execute("SHOW CAPTURES").to_arrow().num_rows == 0


def test_a_table_of_delta_lake_takes_two_statements(engine: Engine, tmp_path: Path) -> None:
    dice, path = random.Random(9), tmp_path / "orders"
    write_deltalake(path, rows_of(dice, [1, 2]), configuration=FEED)
    write_deltalake(tmp_path / "other", rows_of(dice, [1]))
    said = engine.execute(f"CREATE TABLE t (PRIMARY KEY (k)) FROM DELTA '{path}' ON DEMAND").message
    assert said == "table t created, filled by capture t_capture"
    engine.refresh_capture("t_capture")
    assert here(engine) == there(path)
    write(dice, path)
    engine.refresh_capture("t_capture")
    assert here(engine) == there(path)
    with pytest.raises(cq_engine.CatalogError, match="t exists"):
        engine.execute(f"CREATE TABLE t FROM DELTA '{path}'")
    engine.execute("DROP TABLE t CASCADE")
    with pytest.raises(cq_engine.CatalogError, match="t_source exists"):
        engine.execute(f"CREATE TABLE t FROM DELTA '{tmp_path}/other'")
    engine.execute(f"CREATE TABLE t (k BIGINT, PRIMARY KEY (k)) FROM DELTA '{path}' ON DEMAND")
    engine.execute("DROP TABLE t CASCADE")
    with pytest.raises(cq_engine.SourceError, match="no Delta table"):
        engine.execute(f"CREATE TABLE u FROM DELTA '{path}/none'")
    assert engine.execute("SHOW TABLES").to_arrow().num_rows == 0
