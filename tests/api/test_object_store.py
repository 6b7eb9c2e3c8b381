"""An engine over a bucket: the delta law in both modes under faults of the store, through the driver and through executors."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.storage import arrow_files
from cq_engine.transactions import copy_into
from tests import limits
from tests.core.pressing import press
from tests.object_store import Faults, ObjectStoreServer
from tests.oracle.drawn import longest
from tests.oracle.generate import core_histories
from tests.oracle.warehouse import Tally, check_history

Connect = Callable[..., cq_engine.Engine]
EXECUTORS = {**limits.EXECUTORS, "scan_least_bytes": 1, "scan_most_bytes": 3000}
"""Limits with which everything that can be is read and written by executors."""


@pytest.fixture
def database(fresh_postgres: Callable[[], str]) -> str:
    return fresh_postgres()


@pytest.fixture
def connect(
    objects: ObjectStoreServer, bucket_url: str, database: str, spark: SparkSession
) -> Iterator[Connect]:
    opened: list[cq_engine.Engine] = []

    def connect(**more: Any) -> cq_engine.Engine:
        made = cq_engine.connect(bucket_url, database, spark, conf=objects.options, scheduler=False, **more)
        opened.append(made)
        return made

    yield connect
    for engine in opened:
        engine.close()


@pytest.mark.postgres
@pytest.mark.parametrize(
    "paths",
    [pytest.param({}, id="driver"), pytest.param(EXECUTORS, id="executors", marks=pytest.mark.long)],
)
def test_the_delta_law(
    objects: ObjectStoreServer,
    bucket_url: str,
    database: str,
    spark: SparkSession,
    paths: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    write = arrow_files.write

    def noted(store: Any, frame: Any, directory: str, *args: Any, **more: Any) -> Any:
        written.append(directory)
        return write(store, frame, directory, *args, **more)

    monkeypatch.setattr(arrow_files, "write", noted)

    objects.fault(Faults(delay=0.001, fail=0.01, throttle=0.01, seed=7))
    history = longest(core_histories(queries=1, transactions=(2, 2)), "CQ_BUCKET_HISTORIES", 5)
    check_history(history, spark, bucket_url, Tally(), catalog=database, conf=objects.options, paths=paths)
    assert len(written) > (10 if paths else -1)


@pytest.mark.postgres
def test_tasks_read_the_columns_that_a_statement_needs(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SELECT, also of a version; the start of a query and of its state; a recomputation."""
    engine = connect(limits=Limits(**EXECUTORS))
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v STRING, d DECIMAL(10, 2), unread STRING)")
    rows = "SELECT CAST(id AS INT), concat('v', id % 3), CAST(id AS DECIMAL(10, 2)), 'x' FROM range(60)"
    engine.execute(f"INSERT INTO t {rows}")
    engine.execute("COMPACT TABLE t")
    read: list[set[str]] = []
    files = arrow_files.read

    def noted(spark: Any, store: Any, files_: Any, columns: Any, *args: Any, **more: Any) -> Any:
        read.append({column.name for column in columns if not column.name.startswith("_")})
        return files(spark, store, files_, columns, *args, **more)

    monkeypatch.setattr(arrow_files, "read", noted)
    query = "SELECT v, count(*) AS n, sum(d) AS s FROM t GROUP BY v"
    version = engine.catalog.newest_version
    for statement in (query, f"SELECT max(d) FROM t VERSION AS OF {version} WHERE v > 'v0'"):
        read.clear()
        assert engine.execute(statement).fetchall()
        assert read == [{"id", "v", "d"}]
    for start in (
        "q COMPUTE TRANSACTIONAL DELTA ON DEMAND START FROM SNAPSHOT",
        "f COMPUTE COMPRESSED DELTA ON DEMAND START FROM SNAPSHOT WITH (refresh = 'full')",
    ):
        read.clear()
        engine.execute(f"CREATE CONTINUOUS QUERY {start} AS {query}")
        assert {"id", "v", "d"} in read
        assert not [columns for columns in read if "unread" in columns]
    engine.execute("UPDATE t SET d = d + 1 WHERE id < 20")
    read.clear()
    engine.refresh("f")
    assert {"id", "v", "d"} in read
    read.clear()
    assert engine.execute("SELECT * FROM t WHERE id = 3").fetchall()
    assert {"id", "v", "d", "unread"} in read


@pytest.mark.postgres
def test_tasks_read_the_row_groups_that_a_statement_needs(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files and row groups those that can have a value that a column has to equal; whatever else changed since."""
    engine = connect(limits=Limits(**EXECUTORS))
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v STRING, d DATE)")
    rows = "CAST(id AS INT), concat('v', id % 7), DATE '2023-12-31' + CAST(id % 5 AS INT)"
    for low in (0, 100, 200):
        engine.execute(f"INSERT INTO t SELECT {rows} FROM range({low}, {low + 100})")
    engine.execute("UPDATE t SET d = date_add(d, 1)")
    engine.execute("COMPACT TABLE t")
    engine.execute("UPDATE t SET v = 'v1' WHERE id = 250")
    engine.execute("UPDATE t SET v = 'none' WHERE id = 1")
    asked: list[tuple[dict[str, list[object]], int]] = []
    files = arrow_files.read

    def noted(spark: Any, store: Any, found: Any, columns: Any, restrict: Any, **more: Any) -> Any:
        frame = files(spark, store, found, columns, restrict, **more)
        if "_change_type" not in frame.columns:  # else it is a log
            asked.append(({name: values.to_pylist() for name, values in restrict.items()}, frame.count()))
        return frame

    monkeypatch.setattr(arrow_files, "read", noted)
    v1 = sorted({n for n in range(300) if n % 7 == 1 and n != 1} | {250})
    dates = "DATE '2024-01-02', DATE '2023-01-01'"
    for condition, sought, wanted in [
        ("id = 123", {"id": [123]}, [123]),
        ("id IN (5, 207, 7000)", {"id": [5, 207, 7000]}, [5, 207]),
        ("v = 'v1'", {"v": ["v1"]}, v1),
        ("v = 'v1' AND (id = 250 AND id > 0)", {"v": ["v1"], "id": [250]}, [250]),
        (f"d IN ({dates}) AND id < 7", {"d": [date(2024, 1, 2), date(2023, 1, 1)]}, [1, 6]),
        ("id = 5000000000", {}, []),
        ("id = '123'", {}, [123]),
        ("v = 'v1' OR id = 1", {}, sorted([1, *v1])),
        ("NOT id = 123 AND id BETWEEN 122 AND 124", {}, [122, 124]),
    ]:
        asked.clear()
        found = engine.execute(f"SELECT id FROM t WHERE {condition} ORDER BY id").fetchall()
        assert [n for (n,) in found] == wanted, condition
        assert [values for values, _ in asked] == [sought], condition
        (read,) = (rows for _, rows in asked)
        assert read <= 5 * len(sought["id"]) if "id" in sought else read > 200, condition
    asked.clear()
    joined = "SELECT a.id, b.v FROM t a LEFT JOIN t b ON b.id = a.id + 1 WHERE a.id = 122 AND b.v = 'v4'"
    assert engine.execute(joined).fetchall() == [(122, "v4")]
    assert sorted(str(values) for values, _ in asked) == ["{'id': [122]}", "{'v': ['v4']}"]


@pytest.mark.postgres
def test_copy_uses_the_credentials_of_the_warehouse(
    connect: Connect, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Spark has a file system for the URL, which knows nothing of them."""
    engine = connect()
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    file = f"{bucket_url.partition('://')[2]}/in/t.parquet"
    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.int32())}), file, filesystem=engine.catalog.store.filesystem
    )
    asked: list[str] = []

    def forbidden(_spark: SparkSession, path: str, _options: dict[str, str]) -> None:
        asked.append(path)
        raise cq_engine.StorageError("Spark has no credentials")

    monkeypatch.setattr(copy_into, "_SparkFiles", forbidden)
    engine.execute(f"COPY INTO t FROM 's3://{file}'")
    assert asked == [f"s3://{file}", f"s3a://{file}"]
    assert engine.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
    with pytest.raises(cq_engine.StorageError, match="Spark has no credentials"):
        engine.execute("COPY INTO t FROM 's3://nobody/t.parquet'")
    with pytest.raises(cq_engine.StorageError, match="Spark has no credentials"):
        engine.execute("COPY INTO t FROM 'gs://nobody/t.parquet'")


@pytest.mark.postgres
def test_a_large_statement_by_executors(connect: Connect, objects: ObjectStoreServer, database: str) -> None:
    """Rows that no driver has: loaded, refreshed, compacted and published; then read by who is opened after it."""
    engine = connect(limits=Limits(**EXECUTORS))
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v STRING, d DECIMAL(10, 2), unread STRING)")
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT v, count(*) AS n, sum(d) AS s FROM t GROUP BY v"
    )
    rows = "SELECT CAST(id AS INT), concat('v', id % 3), CAST(id AS DECIMAL(10, 2)), 'x' FROM range(60)"
    engine.execute(f"INSERT INTO t {rows}")
    engine.refresh("q")
    engine.execute("UPDATE t SET d = d + 1 WHERE id < 20")
    engine.execute("DELETE FROM t WHERE id >= 50")
    engine.refresh("q")
    engine.execute("COMPACT TABLE t")
    wanted = engine.execute("SELECT v, count(*), sum(d) FROM t GROUP BY v ORDER BY v").fetchall()
    assert [row[1] for row in wanted] == [17, 17, 16]
    assert engine.execute("SELECT * FROM q ORDER BY v").fetchall() == wanted
    engine.publish()
    store = engine.catalog.store
    shown = DeltaTable(store.uri("tables/t"), storage_options=store.delta_options).to_pyarrow_table()
    assert shown.num_rows == 50
    engine.execute("VACUUM")
    engine.close()
    again = connect(read_only=True)
    assert again.execute("SELECT v, count(*), sum(d) FROM t GROUP BY v ORDER BY v").fetchall() == wanted
    log = again.spark.read.format("cq").options(
        warehouse=store.location,
        catalog=database,
        query="q",
        **objects.options,
    )
    kinds = pa.table(log.load().groupBy("_change_type").count().toArrow()).to_pylist()
    assert {"insert", "update_preimage", "update_postimage"} == {each["_change_type"] for each in kinds}


def test_copy_without_a_file_system(tmp_path: Path, spark: SparkSession) -> None:
    with cq_engine.connect(tmp_path / "w", spark=spark, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        for url in ("oss://lake/in/x.parquet", "wasb://lake/in/x.csv"):
            with pytest.raises(cq_engine.CQError, match=f"Spark cannot read {url}") as caught:
                engine.execute(f"COPY INTO t FROM '{url}'")
            assert "spark.jars.packages" in caught.value.hint


@pytest.mark.postgres
def test_nothing_shows_the_keys(connect: Connect, objects: ObjectStoreServer) -> None:
    engine = connect()
    assert not any("storage." in name for name in engine.conf)
    with pytest.raises(cq_engine.CQError, match=r"storage\.region cannot be SET"):
        engine.execute("SET storage.region = 'eu-north-1'")
    secret = objects.access["secret_access_key"]
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    for text in ("SHOW WAREHOUSE", "SHOW TABLES", "EXPLAIN SELECT * FROM t"):
        try:
            shown = repr(engine.execute(text).fetchall())
        except cq_engine.CQError as error:
            shown = error.render()
        assert secret not in shown
    assert secret not in repr(engine.catalog.store.access)  # type: ignore[attr-defined]


def test_the_command(
    objects: ObjectStoreServer, bucket_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`cq` takes a URL, and says what is missing where there is no catalog."""
    conf = [word for name, value in objects.options.items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "cq_engine", "exec", "CREATE TABLE t (id INT PRIMARY KEY)"]
    done = subprocess.run([*command, bucket_url, *conf], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "has no catalog" in done.stderr
    assert "--catalog" in done.stderr
    assert "Traceback" not in done.stderr
    catalog = ["--catalog", f"sqlite:///{tmp_path}/catalog.db"]
    done = subprocess.run(
        [*command, bucket_url, *conf, *catalog], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.postgres
def test_what_large_changes_write_is_not_read_again(connect: Connect, objects: ObjectStoreServer) -> None:
    """Of an empty table nothing is read, and which kinds of change there are is known before the files are."""
    engine = connect(limits=Limits(apply_rows=3))
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY, v INT NOT NULL)")
    rows = {"op": ["I"] * 6 + ["D"], "k": [*range(6), 0], "v": [1] * 7, "txn": [1, 1, 1, 2, 2, 2, 3]}
    objects.counts()
    first, _, last = engine.apply_changes({"t": pa.table(rows)}, transaction="txn")
    counts = objects.counts()
    assert counts["PUT"] >= 1
    assert "GET" not in counts, counts
    storage = engine.catalog.state.tables["t"].storage.id
    assert [each.kinds for each in engine.catalog.changes(storage, first, last)] == [{"INSERT", "DELETE"}]
    assert sorted(engine.execute("SELECT * FROM t").fetchall()) == [(n, 1) for n in range(1, 6)]


@pytest.mark.postgres
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT sum(v) FROM t",
        "INSERT INTO t SELECT CAST(id AS INT), 1 FROM range(100, 200)",
    ],
)
def test_ctrl_c_does_not_wait_for_a_store_that_is_silent(
    connect: Connect, objects: ObjectStoreServer, statement: str
) -> None:
    """The answer comes after ten minutes; a request is given up after twenty seconds, and made again. Nothing is done then, the
    engine goes on, and what was being written is removed."""
    bounds = Limits(inline_bytes=-1, store_request_seconds=20)
    with connect(limits=bounds) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        engine.execute("INSERT INTO t SELECT CAST(id AS INT), 2 FROM range(100)")
        engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT v, count(*) AS n FROM t GROUP BY v")
    engine = connect(limits=bounds)
    store = engine.catalog.store
    known = store.list("")
    objects.fault(Faults(delay=600))
    objects.counts()
    over = threading.Event()

    def press_when_asked() -> None:
        while not over.wait(0.1):
            if objects.counts():
                press()
                return

    pressing = threading.Thread(target=press_when_asked)
    pressing.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.execute(statement)
        assert time.monotonic() - began < 20
    finally:
        over.set()
        pressing.join()
        objects.fault(Faults())
    for thread in threading.enumerate():
        if thread.name == "cq-apart":
            thread.join()
    engine.catalog.attempt("next", by_any=True).abandon()
    assert store.list("") == known
    assert engine.execute("SELECT count(*), sum(v) FROM t").fetchall() == [(100, 200)]
    engine.execute("INSERT INTO t VALUES (100, 2)")
    engine.refresh("q")
    assert [(d.marker, d.new) for d in engine.deltas("q")] == [("U", (2, 101))]
