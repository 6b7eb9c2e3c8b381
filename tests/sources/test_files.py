"""Directories of files as sources, against a model of who writes them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core import faults
from cq_engine.core.limits import Limits
from cq_engine.sources import files

Row = tuple[Any, ...]
COLUMNS = "k BIGINT, d DECIMAL(10, 2), at TIMESTAMP, s STRING"
NAMES = ("k", "d", "at", "s")
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
LOW = Limits(pending_rows=20)
KINDS = ("csv", "json", "parquet")


class Crash(BaseException):
    """In the place of a process that ends."""


@pytest.fixture
def opened(once: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines = []

    def connect(limits: Limits = LOW) -> Engine:
        engines.append(cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(opened: Callable[..., Engine]) -> Engine:
    return opened()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


def declare(
    engine: Engine,
    inbox: Path,
    kind: str,
    using: str = "LOG",
    columns: str = COLUMNS,
    options: str = "",
    capture: str = "",
) -> None:
    engine.execute(f"CREATE TABLE t ({columns})")
    engine.execute(
        f"CREATE SOURCE lake TYPE {kind} WITH (path = '{inbox}', settled = '0 seconds'{options and ', ' + options})"
    )
    engine.execute(f"CREATE CAPTURE c INTO t FROM lake USING {using} {capture} ON DEMAND")


def text_of(kind: str, rows: list[Row]) -> bytes:
    """A file of rows, as others write it."""
    if kind == "csv":
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_MINIMAL)
        writer.writerow(["S", "at", "K", "other", "d"])
        for k, d, at, s in rows:
            shown = f'"{s}"' if s == "" else None
            line = io.StringIO()
            csv.writer(line).writerow([s, at and at.isoformat(), k, "x", d])
            out.write(
                line.getvalue() if shown is None else shown + line.getvalue()[line.getvalue().index(",") :]
            )
        return out.getvalue().encode()
    if kind == "json":
        lines = [
            {"K": k, "d": d if d is None else str(d), "at": at and at.isoformat(), "s": s, "other": [1]}
            for k, d, at, s in rows
        ]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    kinds = [pa.int32(), pa.decimal128(12, 2), pa.timestamp("ns"), pa.large_string()]
    arrays = (
        [pa.array(some, of) for some, of in zip(zip(*rows), kinds)]
        if rows
        else [pa.nulls(0, k) for k in kinds]
    )
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays, names=["k", "D", "at", "s"]), buffer)
    return bytes(buffer.getvalue())


def put(path: Path, text: bytes, second: int = 0) -> None:
    """A file that appears whole, written at a second of 2026."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}").write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    moment = BEGIN.timestamp() + second
    os.utime(path.with_name(f".{path.name}"), (moment, moment))
    path.with_name(f".{path.name}").rename(path)


def here(engine: Engine, columns: str = "k, d, at, s", table: str = "t") -> list[Row]:
    return sorted(engine.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)


@dataclass
class Writer:
    """Writes files of random rows; what a table with the key k, and one without, have then."""

    dice: random.Random
    kind: str
    directory: Path
    rows: list[Row] = field(default_factory=list)
    number: int = 0

    def write(self, most: int = 8) -> None:
        self.number += 1
        rows = [self.row() for _ in range(self.dice.randint(0, most))]
        ending = self.kind + self.dice.choice(["", ".gz"] if self.kind != "parquet" else [""])
        name = f"{self.dice.randint(0, 99):02d}-{self.number}.{ending}"
        put(self.directory / self.dice.choice(["", "below"]) / name, text_of(self.kind, rows), self.number)
        self.rows += rows

    def row(self) -> Row:
        dice = self.dice
        moment = BEGIN + timedelta(microseconds=dice.randint(0, 10**12))
        return (
            dice.randint(0, 15),
            dice.choice([None, Decimal("1.50"), Decimal("-2.25")]),
            dice.choice([None, moment]),
            dice.choice([None, "", "a\nb" if self.kind == "csv" else "c", "ü,;'", 'x"y', " z "]),
        )

    def wanted(self, key: bool) -> list[Row]:
        rows = list({row[0]: row for row in self.rows}.values()) if key else self.rows
        return sorted(rows, key=repr)


@pytest.mark.parametrize("key", [", PRIMARY KEY (k)", ""], ids=["key", "no key"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_read_once(engine: Engine, inbox: Path, kind: str, key: str) -> None:
    writer = Writer(random.Random(7), kind, inbox)
    declare(engine, inbox, kind, columns=COLUMNS + key)
    for n in range(8):
        for _ in range(writer.dice.randint(0, 4)):
            writer.write(60 if n == 5 else 8)
        engine.refresh_capture("c")
        assert here(engine) == writer.wanted(bool(key))
        assert engine.refresh_capture("c").commit_versions == ()


@pytest.mark.parametrize("key", [", PRIMARY KEY (k)", ""], ids=["key", "no key"])
def test_a_large_file_does_not_go_through_the_driver_at_once(
    engine: Engine, inbox: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.readers, "_BLOCK_ROWS", 7)
    writer = Writer(random.Random(3), "json", inbox)
    declare(engine, inbox, "json", columns=COLUMNS + key)
    rows = [(n % 50, None, None, str(n)) for n in range(100)]
    put(inbox / "large.json", text_of("json", rows))
    done = engine.refresh_capture("c")
    writer.rows += rows
    assert here(engine) == writer.wanted(bool(key))
    assert len(done.commit_versions) == (7 if key else 1)


def test_a_large_file_goes_on_where_it_was(
    opened: Callable[..., Engine], inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.readers, "_BLOCK_ROWS", 7)
    engine = opened()
    declare(
        engine,
        inbox,
        "json",
        columns=COLUMNS + ", PRIMARY KEY (k)",
        capture="WITH (on_poison = 'dead_letter')",
    )
    lines = text_of("json", [(n % 50, None, None, str(n)) for n in range(100)]).splitlines(keepends=True)
    lines[3] = lines[60] = b"{\n"
    put(inbox / "large.json", b"".join(lines))
    left, point = [4], faults.point

    def crash(name: str, file: Path | None = None) -> None:
        left[0] -= name == "commit.after_catalog"
        if not left[0]:
            raise Crash
        point(name, file)

    monkeypatch.setattr(faults, "point", crash)
    with pytest.raises(Crash):
        engine.refresh_capture("c")
    monkeypatch.setattr(faults, "point", point)
    engine.close()
    engine = opened()
    engine.refresh_capture("c")
    assert dict(here(engine, "k, s")) == {n % 50: str(n) for n in range(100) if n not in (3, 60)}
    assert here(engine, "row", "c_dead") == [(4,), (61,)]


POINTS = ["commit.begin", "commit.staged", "commit.before_catalog", "commit.after_catalog"]


@pytest.mark.parametrize("point", POINTS)
def test_kills(
    opened: Callable[..., Engine], inbox: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, real = Writer(random.Random(5), "csv", inbox), faults.point
    engine = opened()
    declare(engine, inbox, "csv")
    for _ in range(3):
        for _ in range(6):
            writer.write()

        def crash(name: str, file: Path | None = None) -> None:
            if name == point:
                raise Crash
            real(name, file)

        monkeypatch.setattr(faults, "point", crash)
        with pytest.raises(Crash):
            engine.refresh_capture("c")
        monkeypatch.setattr(faults, "point", real)
        engine.close()
        engine = opened()
        engine.refresh_capture("c")
        assert here(engine) == writer.wanted(key=False)


# ---------------------------------------------------------------- which files, and when


def test_files_that_are_hidden_or_being_written_are_left(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT", options="pattern = '*.csv'")
    engine.execute("ALTER SOURCE lake SET WITH (settled = '10 seconds')")
    for name in ("_a.csv", ".a.csv", "_tmp/a.csv", "a.txt", "empty.csv"):
        put(inbox / name, b"" if name == "empty.csv" else b"k\n1\n")
    (inbox / "now.csv").write_bytes(b"k\n2\n")
    put(inbox / "b.csv", b"k\n3\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(3,)]
    with (inbox / "now.csv").open("ab") as file:
        file.write(b"4\n")
    put(inbox / "empty.csv", b"k\n5\n")
    before = time.time() - 11
    os.utime(inbox / "now.csv", (before, before))
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,), (3,), (4,), (5,)]


def test_a_file_that_is_written_to_while_it_is_read(
    engine: Engine, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    put(inbox / "b.csv", b"k\n2\n")
    real = files.directory.Directory.stream

    def grow(self: Any, name: str) -> Any:
        stream = real(self, name)
        if name == "a.csv":
            (inbox / name).write_bytes(b"k\n1\n3\n")
        return stream

    monkeypatch.setattr(files.directory.Directory, "stream", grow)
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,)]
    monkeypatch.setattr(files.directory.Directory, "stream", real)
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (2,), (3,)]


def test_later_files_win(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT PRIMARY KEY, v STRING")
    put(inbox / "a.csv", b"k,v\n1,late\n", 20)
    put(inbox / "b.csv", b"k,v\n1,early\n", 10)
    engine.refresh_capture("c")
    assert here(engine, "k, v") == [(1, "late")]
    engine.execute("ALTER SOURCE lake SET WITH (order = 'name')")
    put(inbox / "c.csv", b"k,v\n1,first\n", 40)
    put(inbox / "d.csv", b"k,v\n1,second\n", 30)
    engine.refresh_capture("c")
    assert here(engine, "k, v") == [(1, "second")]


@pytest.mark.parametrize(
    ("option", "keys"), [("error", None), ("again", [(1, "b"), (2, "b")]), ("ignore", [(1, "a")])]
)
def test_a_file_that_has_changed(engine: Engine, inbox: Path, option: str, keys: list[Row] | None) -> None:
    declare(
        engine, inbox, "csv", columns="k INT PRIMARY KEY, v STRING", capture=f"WITH (changed = '{option}')"
    )
    put(inbox / "a.csv", b"k,v\n1,a\n")
    engine.refresh_capture("c")
    put(inbox / "a.csv", b"k,v\n1,b\n2,b\n", 5)
    if keys is None:
        with pytest.raises(cq_engine.SourceError, match="has changed after capture c had read it"):
            engine.refresh_capture("c")
        engine.execute("ALTER CAPTURE c SET WITH (changed = 'again')")
        engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine, "k, v") == (keys or [(1, "b"), (2, "b")])
    assert engine.refresh_capture("c").commit_versions == ()


def test_a_file_is_not_read_again_where_its_rows_are_not_known(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c SET WITH (changed = 'again')")
    put(inbox / "a.csv", b"k\n1\n2\n", 5)
    with pytest.raises(cq_engine.SourceError, match="has changed after"):
        engine.refresh_capture("c")
    assert here(engine, "k") == [(1,)]


def test_what_a_variable_stands_for_is_not_shown(
    engine: Engine, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (f"{inbox}/hush", "hush://x"):
        monkeypatch.setenv("CQ_IN", value)
        with pytest.raises(cq_engine.SourceError) as error:
            engine.execute("CREATE SOURCE lake TYPE csv WITH (path = '${CQ_IN}')")
        assert "hush" not in str(error.value)


def test_rows_that_are_left_out_count(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT", capture="WITH (on_poison = 'dead_letter')")
    put(inbox / "a.csv", b"k\n1,1\n2\nx\n1,2\n1,3\ny\n7\n8,8\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,), (7,)]
    assert here(engine, "row", "c_dead") == [(2,), (4,), (5,), (6,), (7,), (9,)]


def test_names_that_are_gone_are_forgotten(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    put(inbox / "b.csv", b"k\n5\n")
    engine.refresh_capture("c")
    (inbox / "a.csv").unlink()
    engine.refresh_capture("c")
    position = json.loads(engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]["position"])
    assert list(position["files"]) == ["b.csv"]
    put(inbox / "a.csv", b"k\n2\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (2,), (5,)]


def test_a_directory_that_is_away_for_a_while(engine: Engine, inbox: Path) -> None:
    """A share that is not mounted looks like a directory without files."""
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    engine.refresh_capture("c")
    away = inbox.rename(inbox.with_name("away"))
    inbox.mkdir()
    engine.refresh_capture("c")
    inbox.rmdir()
    away.rename(inbox)
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,)]


def test_a_copy_whose_file_was_just_truncated(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", using="COPY", columns="k INT, PRIMARY KEY (k)")
    put(inbox / "a.csv", b"k\n1\n2\n")
    engine.refresh_capture("c")
    (inbox / "a.csv").write_bytes(b"")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (2,)]


def test_values_that_do_not_fit_are_those_of_their_rows(engine: Engine, inbox: Path) -> None:
    declare(
        engine,
        inbox,
        "json",
        columns="k INT, d DECIMAL(5, 2), s STRING",
        capture="WITH (on_poison = 'dead_letter')",
    )
    lines = [
        {"k": 1, "d": 1.5},
        {"k": 2, "d": 123456},
        {"k": 3, "d": 1.23456},
        {"k": 4, "s": "\ud800"},
        {"k": 5, "d": "1e100"},
        {"k": 6},
    ]
    put(inbox / "a.json", "".join(json.dumps(line) + "\n" for line in lines).encode())
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (6,)]
    letters = engine.execute("SELECT row FROM c_dead ORDER BY row").fetchall()
    assert letters == [(2,), (3,), (4,), (5,)]


def test_a_table_that_is_called_like_dead_letters_stays(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    engine.execute("CREATE TABLE c_dead (x INT)")
    with pytest.raises(cq_engine.CQError, match="c_dead exists"):
        engine.execute("ALTER CAPTURE c SET WITH (on_poison = 'dead_letter')")
    engine.execute("DROP CAPTURE c")
    assert engine.execute("SELECT * FROM c_dead").fetchall() == []


def test_nothing_of_what_is_there(engine: Engine, inbox: Path) -> None:
    put(inbox / "a.csv", b"k\n1\n")
    declare(engine, inbox, "csv", columns="k INT", capture="WITH (initial = 'none')")
    engine.refresh_capture("c")
    put(inbox / "b.csv", b"k\n2\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,)]


def test_directories_that_say_what_their_files_have(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT, year INT, s STRING", capture="")
    put(inbox / "year=2024" / "s=a%20b" / "x.csv", b"k\n1\n")
    put(inbox / "year=2025" / "y.csv", b"k,S\n2,c\n")
    engine.refresh_capture("c")
    assert here(engine, "k, year, s") == [(1, 2024, "a b"), (2, 2025, "c")]


# ---------------------------------------------------------------- formats


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
