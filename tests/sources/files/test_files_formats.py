"""The formats of files, what cannot be read of them, and files that are a table."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cq_engine
from cq_engine import Engine
from tests.sources.files.inbox import BEGIN, COLUMNS, KINDS, Writer, declare, here, put, text_of


def test_options_of_csv(engine: Engine, inbox: Path) -> None:
    options = "delimiter = ';', header = 'false', quote = '''', null = 'NA', time_zone = 'Europe/Berlin'"
    declare(engine, inbox, "csv", columns="k INT, s STRING, at TIMESTAMP", options=options, capture="")
    put(inbox / "a.csv", b"1;'a;b';2026-01-01 01:00:00\nNA;NA;2026-01-01T00:00:00Z\n2;;2026-07-01\n")
    engine.refresh_capture("c")
    summer = datetime(2026, 6, 30, 22, tzinfo=timezone.utc)
    assert here(engine, "k, s, at") == [(1, "a;b", BEGIN), (2, "", summer), (None, None, BEGIN)]


def test_columns_by_other_names(engine: Engine, inbox: Path) -> None:
    engine.execute("CREATE TABLE t (k INT, mine STRING, v STRING)")
    engine.execute(f"CREATE SOURCE lake TYPE csv WITH (path = '{inbox}', settled = '0 seconds')")
    (inbox / "orders").mkdir()
    columns = "(id AS k, Value AS v)"
    engine.execute(f"CREATE CAPTURE c INTO t FROM lake TABLE 'orders' {columns} USING LOG ON DEMAND")
    put(inbox / "orders" / "a.csv", b"value,ID\nx,1\n")
    engine.refresh_capture("c")
    assert here(engine, "k, mine, v") == [(1, None, "x")]


def test_nested_values(engine: Engine, inbox: Path) -> None:
    declare(
        engine, inbox, "json", columns="k INT, a ARRAY<INT>, o STRUCT<x: INT, y: STRING>, m MAP<STRING, INT>"
    )
    put(inbox / "a.json", b'{"k": 1, "a": [1, null], "o": {"x": 1, "y": "z"}, "m": {"b": 2}}\n{"k": 2}\n')
    engine.refresh_capture("c")
    assert here(engine, "k, a[0] a, o.y, m['b'] b") == [(1, 1, "z", 2), (2, None, None, None)]


# ---------------------------------------------------------------- what cannot be read


POISON = [
    ("csv", b"k,v\n1,a\nx,b\n2,c\n", 3, "its k is 'x', which is no int"),
    ("csv", b"k,v\n1,a\n1,2,3\n2,c\n", 3, "it has 3 fields in place of 2"),
    ("csv", b"k,v\n1,a\n3,\xff\n2,c\n", 3, "which is no string"),
    ("csv", b"k,v\n1,a\n,c\n2,c\n", 3, "its k is NULL"),
    ("csv", b"k,w\n1,a\n", None, "it has no column v"),
    ("json", b'{"k": 1, "v": "a"}\n{"k": "x"}\n{"k": 2, "v": "c"}\n', 2, "its k is 'x', which is no int"),
    ("json", b'{"k": 1, "v": "a"}\n[]\n{"k": 2, "v": "c"}\n', 2, "it is no object"),
    ("json", b'{"k": 1, "v": "a"}\n{"v": "x"}\n{"k": 2, "v": "c"}\n', 2, "its k is NULL"),
    ("json", b'{"k": 1, "v": "a"}\n{"k": 1e9999}\n{"k": 2, "v": "c"}\n', 2, "which is no int"),
    ("json", b'{"k": 1, "v": "a"}\n{"k": 3000000000}\n{"k": 2, "v": "c"}\n', 2, "which is no int"),
    ("parquet", b"PAR1 is not all", None, "arquet"),
]


PARQUET = pa.BufferOutputStream()
pq.write_table(pa.table({"k": [9], "v": ["z"]}), PARQUET)
GOOD = {"csv": b"k,v\n9,z\n", "json": b'{"k": 9, "v": "z"}\n', "parquet": bytes(PARQUET.getvalue())}


@pytest.mark.parametrize(("kind", "text", "row", "reason"), POISON)
def test_poison_stops_and_loses_nothing(
    engine: Engine, inbox: Path, kind: str, text: bytes, row: int | None, reason: str
) -> None:
    declare(engine, inbox, kind, columns="k INT PRIMARY KEY, v STRING")
    put(inbox / "a", GOOD[kind], 1)
    put(inbox / "b", text, 2)
    with pytest.raises(cq_engine.SourceError, match="file b has what capture c cannot read") as error:
        engine.refresh_capture("c")
    assert reason in error.value.detail
    assert row is None or f"row {row}:" in error.value.detail
    assert here(engine, "k") == [(9,)]
    engine.execute("ALTER CAPTURE c SET WITH (on_poison = 'dead_letter')")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine, "k") == ([(9,)] if row is None else [(1,), (2,), (9,)])
    (dead,) = engine.execute("SELECT file, row, reason, text FROM c_dead").fetchall()
    assert dead[:2] == ("b", row)
    assert reason in dead[2]
    assert engine.refresh_capture("c").commit_versions == ()


def test_poison_of_a_large_file_is_put_aside_with_it(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT", capture="WITH (on_poison = 'dead_letter')")
    lines = [b"x" if n % 20 == 7 else b"%d" % n for n in range(100)]
    put(inbox / "a.csv", b"k\n" + b"\n".join(lines))
    done = engine.refresh_capture("c")
    assert len(done.commit_versions) == 1
    assert sorted(k for (k,) in here(engine, "k")) == [n for n in range(100) if n % 20 != 7]
    assert here(engine, "row", "c_dead") == sorted([(n + 2,) for n in range(7, 100, 20)], key=repr)


def test_what_is_no_capture_of_files(engine: Engine, inbox: Path) -> None:
    engine.execute("CREATE TABLE t (k INT, a ARRAY<INT>)")
    engine.execute("CREATE TABLE u (k INT PRIMARY KEY, v INT)")
    engine.execute(f"CREATE SOURCE lake TYPE csv WITH (path = '{inbox}')")
    for statement, said in (
        ("INTO t FROM lake USING LOG", "which CSV does not have"),
        ("INTO t FROM lake (k) USING LOG WITH (changed = 'again')", "needs a primary key"),
        ("INTO t FROM lake (k) USING COPY", "has no primary key"),
        ("INTO u FROM lake (v) USING LOG", "does not fill the key column k"),
        ("INTO u FROM lake WHERE 'k > 1' USING LOG", "WHERE is not for"),
        ("INTO u FROM lake USING CHECKSUM", "is not for sources of type csv"),
    ):
        with pytest.raises(cq_engine.AnalysisError, match=said):
            engine.execute(f"CREATE CAPTURE c {statement} ON DEMAND")
    with pytest.raises(cq_engine.SourceUnavailableError, match="has no files at"):
        engine.execute("CREATE CAPTURE c INTO u FROM lake TABLE 'gone' USING LOG")
    with pytest.raises(cq_engine.AnalysisError, match="is not possible"):
        engine.execute(f"CREATE SOURCE other TYPE csv WITH (path = '{inbox}', delimiter = 'ab')")


# ---------------------------------------------------------------- files that are a table


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_the_files(engine: Engine, inbox: Path, kind: str) -> None:
    dice = random.Random(11)
    writer = Writer(dice, kind, inbox)
    put(inbox / f"a.{kind}", text_of(kind, []))
    declare(engine, inbox, kind, "COPY", COLUMNS + ", PRIMARY KEY (k)")
    for n in range(6):
        rows = {row[0]: row for row in (writer.row() for _ in range(60 if n == 3 else 9))}
        parts = [[row for k, row in rows.items() if k % 2 == part] for part in (0, 1)]
        for part, some in zip("ab", parts):
            put(inbox / f"{part}.{kind}", text_of(kind, some), n)
        engine.refresh_capture("c")
        assert here(engine) == sorted(rows.values(), key=repr)
        assert engine.refresh_capture("c").rows_read == 0
    for part in "ab":
        (inbox / f"{part}.{kind}").unlink()
    with pytest.raises(cq_engine.SourceUnavailableError, match="has no file at"):
        engine.refresh_capture("c")
    assert here(engine) == sorted(rows.values(), key=repr)


def test_one_file_that_is_the_table(engine: Engine, inbox: Path) -> None:
    put(inbox / "a.csv", b"k,v\n1,a\n2,b\n")
    put(inbox / "other.csv", b"k,v\n3,a\n")
    declare(engine, inbox / "a.csv", "csv", "COPY", "k INT PRIMARY KEY, v STRING")
    for n, text in enumerate((b"k,v\n1,a\n2,b\n", b"k,v\n2,c\n", b"k,v\n2,c\n1,d\n")):
        put(inbox / "a.csv", text, n)
        engine.refresh_capture("c")
        assert here(engine, "k, v") == sorted(
            [(int(k), v) for k, v in (line.split(",") for line in text.decode().split()[1:])]
        )
    put(inbox / "a.csv", b"k,v\n1,a\n1,b\n", 9)
    with pytest.raises(cq_engine.SourceError, match="several rows of the source have one key"):
        engine.refresh_capture("c")
    put(inbox / "a.csv", b"k,v\n1,a\nx,b\n", 10)
    engine.execute("ALTER CAPTURE c RESUME")
    with pytest.raises(cq_engine.SourceError, match=r"file a\.csv") as error:
        engine.refresh_capture("c")
    assert "row 3:" in error.value.detail


def test_advice(engine: Engine, inbox: Path) -> None:
    (inbox / "orders").mkdir()
    put(inbox / "orders" / "a.parquet", text_of("parquet", [(1, None, None, "a")]))
    engine.execute(f"CREATE SOURCE lake TYPE parquet WITH (path = '{inbox}')")
    rows = engine.execute("ADVISE CAPTURE FROM lake TABLE 'orders'").to_arrow().to_pylist()
    possible = {row["method"]: row for row in rows if row["possible"]}
    assert list(possible) == ["COPY", "LOG"]
    assert possible["LOG"]["recommended"]
    assert possible["COPY"]["rows_read"] == 1
