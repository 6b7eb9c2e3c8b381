"""Tables of Apache Iceberg as sources, against the tables themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, Engine
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.core.limits import Limits

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.decimal128(10, 2))])


@pytest.fixture
def engine(tmp_path: Path, once: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False) as opened:
        yield opened


@pytest.fixture
def lake(tmp_path: Path) -> Table:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    return catalog.create_table("shop.t", schema=SCHEMA)


def rows_of(dice: random.Random, keys: list[int]) -> pa.Table:
    rows = [{"k": k, "v": dice.choice(["a", "b", None]), "n": dice.choice([1, 2, None])} for k in keys]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def there(lake: Table) -> list[dict[str, Any]]:
    rows = lake.scan().to_arrow().cast(SCHEMA).to_pylist()
    return sorted(rows, key=lambda row: row["k"])


def here(engine: Engine, table: str = "t") -> list[dict[str, Any]]:
    rows = engine.execute(f"SELECT k, v, n FROM {table}").to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["k"])


def path_of(lake: Table) -> str:
    return lake.location()


def create(
    engine: Engine, lake: Table, using: str = "LOG", key: str = ", PRIMARY KEY (k)", where: str = ""
) -> None:
    engine.execute(f"CREATE TABLE t (k BIGINT, v STRING, n DECIMAL(10, 2){key})")
    engine.execute(f"CREATE SOURCE lake TYPE iceberg WITH (path = '{path_of(lake)}')")
    engine.execute(f"CREATE CAPTURE c INTO t FROM lake {where} USING {using} ON DEMAND")


@pytest.mark.parametrize("using", ["LOG", "COPY"])
def test_versions_of_any_kind(engine: Engine, lake: Table, using: str) -> None:
    """After every tick the replica is the table, however many snapshots of which kind came between."""
    dice = random.Random(len(using))
    lake.append(rows_of(dice, list(range(5))))
    create(engine, lake, using)
    for _ in range(8):
        for _ in range(dice.randint(0, 2)):
            known = [row["k"] for row in there(lake)]
            fresh = [k for k in range(30) if k not in known][: dice.randint(1, 3)]
            match dice.choice(["append", "append", "delete", "overwrite", "upsert"]):
                case "append":
                    lake.append(rows_of(dice, fresh))
                case "delete" if known:
                    lake.delete(f"k == {dice.choice(known)}")
                case "overwrite":
                    lake.overwrite(rows_of(dice, sorted({*known[:2], *fresh})))
                case _:
                    lake.upsert(rows_of(dice, sorted({*known[-2:], *fresh})), join_cols=["k"])
        engine.execute("REFRESH CAPTURE c")
        assert here(engine) == there(lake)


def test_appended_rows_are_commits_with_their_times(engine: Engine, lake: Table) -> None:
    dice = random.Random(1)
    lake.append(rows_of(dice, [1, 2]))
    create(engine, lake, key="")
    engine.execute("REFRESH CAPTURE c")
    before = engine.catalog.newest_version
    for keys in ([3], [4, 5]):
        lake.append(rows_of(dice, keys))
    engine.execute("REFRESH CAPTURE c")
    assert engine.catalog.newest_version == before + 2
    assert here(engine) == there(lake)
    stamps = engine.execute(
        f"SELECT DISTINCT _commit_timestamp FROM t CHANGES FROM VERSION {before + 1} ORDER BY 1"
    ).fetchall()
    wanted = [each.timestamp_ms for each in lake.refresh().snapshots()[-2:]]
    assert [round(moment.timestamp() * 1000) for (moment,) in stamps] == wanted
    lake.delete("k == 1")
    with pytest.raises(SourceError, match="not only appended to"):
        engine.execute("REFRESH CAPTURE c")
    assert len(here(engine)) == 5


def test_snapshots_that_are_too_many_rows_are_compared(
    tmp_path: Path, once: SparkSession, lake: Table
) -> None:
    dice = random.Random(2)
    lake.append(rows_of(dice, list(range(3))))
    small = Limits(apply_rows=4, pending_rows=4)
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=small) as engine:
        create(engine, lake)
        engine.execute("REFRESH CAPTURE c")
        lake.append(rows_of(dice, [10, 11]))
        lake.append(rows_of(dice, list(range(20, 30))))
        engine.execute("REFRESH CAPTURE c")
        assert here(engine) == there(lake)
        engine.execute("DROP CAPTURE c")
        engine.execute("CREATE TABLE u (k BIGINT, v STRING, n DECIMAL(10, 2))")
        engine.execute("CREATE CAPTURE d INTO u FROM lake USING LOG WITH (initial = 'none') ON DEMAND")
        engine.execute("REFRESH CAPTURE d")
        lake.append(rows_of(dice, list(range(40, 52))))
        engine.execute("REFRESH CAPTURE d")
        assert [row["k"] for row in here(engine, "u")] == list(range(40, 52))


def test_columns_and_restriction(engine: Engine, lake: Table) -> None:
    dice = random.Random(3)
    lake.append(rows_of(dice, list(range(8))))
    create(engine, lake, where="WHERE 'k >= 3 and k < 6'")
    engine.execute("REFRESH CAPTURE c")
    lake.append(rows_of(dice, [9]))
    engine.execute("REFRESH CAPTURE c")
    assert [row["k"] for row in here(engine)] == [3, 4, 5]


def test_a_table_that_is_another_one(engine: Engine, lake: Table, tmp_path: Path) -> None:
    """What has gone back to an older snapshot, or was created anew, is compared as a whole."""
    dice = random.Random(4)
    lake.append(rows_of(dice, [1, 2]))
    create(engine, lake)
    engine.execute("REFRESH CAPTURE c")
    first = lake.refresh().current_snapshot()
    assert first is not None
    lake.append(rows_of(dice, [3]))
    engine.execute("REFRESH CAPTURE c")
    lake.manage_snapshots().set_current_snapshot(snapshot_id=first.snapshot_id).commit()
    engine.execute("REFRESH CAPTURE c")
    assert here(engine) == there(lake.refresh())
    other = SqlCatalog("d", uri=f"sqlite:///{tmp_path}/d.db", warehouse=f"file://{tmp_path}/other")
    other.create_namespace("shop")
    anew = other.create_table("shop.t", schema=SCHEMA)
    anew.append(rows_of(dice, [7]))
    engine.execute(f"ALTER SOURCE lake SET WITH (path = '{anew.location()}')")
    engine.execute("REFRESH CAPTURE c")
    assert here(engine) == there(anew)


def test_what_is_wrong_is_said(engine: Engine, lake: Table, tmp_path: Path) -> None:
    engine.execute("CREATE TABLE t (k BIGINT, missing STRING, PRIMARY KEY (k))")
    engine.execute(f"CREATE SOURCE lake TYPE iceberg WITH (path = '{path_of(lake)}')")
    with pytest.raises(AnalysisError, match="no column missing"):
        engine.execute("CREATE CAPTURE c INTO t FROM lake USING LOG ON DEMAND")
    with pytest.raises(AnalysisError, match="path has a password"):
        engine.execute("CREATE SOURCE shown TYPE iceberg WITH (path = 's3://me:secret@bucket/t')")
    engine.execute(f"CREATE SOURCE nowhere TYPE iceberg WITH (path = '{tmp_path}/none')")
    with pytest.raises(SourceUnavailableError, match="no Iceberg table"):
        engine.execute("CREATE CAPTURE c INTO t FROM nowhere USING LOG ON DEMAND")
    engine.execute("CREATE TABLE bag (k BIGINT)")
    with pytest.raises(AnalysisError, match="no primary key"):
        engine.execute("CREATE CAPTURE c INTO bag FROM lake USING COPY ON DEMAND")
    engine.execute("CREATE TABLE some (k BIGINT, PRIMARY KEY (k))")
    with pytest.raises(SourceError, match="WHERE of capture c"):
        engine.execute("CREATE CAPTURE c INTO some FROM lake WHERE 'k >>> 3' USING LOG ON DEMAND")
    engine.execute("CREATE TABLE narrow (k TINYINT, PRIMARY KEY (k))")
    engine.execute("CREATE CAPTURE n INTO narrow FROM lake USING LOG ON DEMAND")
    lake.append(rows_of(random.Random(5), [1000]))
    with pytest.raises(SourceError, match="no tinyint for column k"):
        engine.execute("REFRESH CAPTURE n")


def test_columns_that_came_after_the_newest_snapshot(engine: Engine, lake: Table) -> None:
    lake.append(rows_of(random.Random(7), [1]))
    with lake.update_schema() as update:
        update.add_column("w", StringType())
    engine.execute("CREATE TABLE t (k BIGINT, w STRING, PRIMARY KEY (k))")
    engine.execute(f"CREATE SOURCE lake TYPE iceberg WITH (path = '{path_of(lake)}')")
    engine.execute("CREATE CAPTURE c INTO t FROM lake USING LOG ON DEMAND")
    engine.execute("REFRESH CAPTURE c")
    assert engine.execute("SELECT k, w FROM t").fetchall() == [(1, None)]


def test_metadata_that_is_being_written_is_read_later(
    engine: Engine, lake: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what variables stand for is not shown."""
    monkeypatch.setenv("LAKE", path_of(lake).removeprefix("file://"))
    engine.execute("CREATE TABLE t (k BIGINT, PRIMARY KEY (k))")
    engine.execute("CREATE SOURCE lake TYPE iceberg WITH (path = '${LAKE}')")
    engine.execute("CREATE CAPTURE c INTO t FROM lake USING LOG ON DEMAND")
    lake.append(rows_of(random.Random(8), [1]))
    half = Path(path_of(lake).removeprefix("file://")) / "metadata" / "00009-x.metadata.json"
    half.write_text('{"format-version"')
    with pytest.raises(SourceUnavailableError, match="LAKE") as error:
        engine.execute("REFRESH CAPTURE c")
    assert str(half.parent) not in str(error.value)
    half.unlink()
    engine.execute("REFRESH CAPTURE c")
    assert engine.execute("SELECT k FROM t").fetchall() == [(1,)]


def test_advice(engine: Engine, lake: Table) -> None:
    lake.append(rows_of(random.Random(6), list(range(200))))
    above = Path(path_of(lake).removeprefix("file://")).parent
    engine.execute(f"CREATE SOURCE lake TYPE iceberg WITH (path = '{above}')")
    advised = (
        engine.execute(f"ADVISE CAPTURE FROM lake TABLE '{Path(path_of(lake)).name}'").to_arrow().to_pylist()
    )
    found = {row["method"]: row for row in advised}
    assert [name for name, row in found.items() if row["possible"]] == ["COPY", "LOG"]
    assert found["COPY"]["rows_read"] == 200
    assert [name for name, row in found.items() if row["recommended"]] == ["LOG"]
