"""COPY INTO through Arrow, where Spark has no file system for a bucket: it gives what Spark's own reader gives of the same files."""

from __future__ import annotations

import gzip
import math
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.storage.base import Found
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.catalog.storage.location import open_beside
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError
from cq_engine.core.limits import Limits
from cq_engine.spark.sql import translate_errors
from cq_engine.storage.outside_lines import first_line, read_lines
from cq_engine.transactions.copy_into import _SparkFiles
from cq_engine.transactions.copy_outside import OutsideFiles
from tests.object_store import ObjectStoreServer
from tests.oracle.budget import budget

LIMITS = Limits(scan_least_bytes=1, scan_most_bytes=7)
"""A task for every few bytes, so that lines lie across the ends of what tasks read."""
COLUMNS = (Column("a", "int"), Column("b", "string"), Column("c", "double"))


class Streams(LocalStore):
    """A directory whose files are streams, as an object store's are."""

    def source(self, path: str) -> Any:
        return pa.OSFile(self.path(path))


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside")


def both(
    spark: SparkSession, place: Path, options: Mapping[str, str], limits: Limits = LIMITS
) -> tuple[_SparkFiles, OutsideFiles]:
    """Who reads what is in the directory: Spark, and tasks through Arrow."""
    store = Streams(str(place))
    return _SparkFiles(spark, f"{place}/in", dict(options)), OutsideFiles(spark, store, "in", options, limits)


def write(place: Path, files: Mapping[str, bytes]) -> None:
    (place / "in").mkdir(exist_ok=True)
    for old in (place / "in").iterdir():
        old.unlink()
    for name, data in files.items():
        (place / "in" / name).write_bytes(data)


def rows(frame: Any) -> Any:
    """The rows in an order of their own, or that it is an error."""
    try:
        with translate_errors():
            return sorted(repr(tuple(_plain(value) for value in row)) for row in frame().collect())
    except CQError:
        return "refused"


def _plain(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


FIELD = st.one_of(
    st.integers(-9, 120).map(str), st.sampled_from(["", " ", "x", '"q,r"', '"a ""b"""', "é", "NULL", "1.5", "#", "NaN", '"', "\\", "\u00a0", "\x01"])
)  # fmt: skip
LINE = st.one_of(
    st.tuples(st.integers(-9, 99).map(str), FIELD, st.sampled_from(["", "1.5", "-2", "NaN"])).map(",".join),
    st.lists(FIELD, min_size=0, max_size=4).map(",".join),
    st.sampled_from(["", "  ", "# no row", "#"]),
)
TEXTS = st.tuples(
    st.lists(LINE, max_size=6), st.sampled_from(["\n", "\r\n", "\r", "\n\r", "\r\r\n"]), st.booleans()
)
OPTIONS = st.fixed_dictionaries(
    {"mode": st.sampled_from(["FAILFAST", "PERMISSIVE"])},
    optional={
        "comment": st.just("#"),
        "nullValue": st.sampled_from(["NULL", "x"]),
        "ignoreLeadingWhiteSpace": st.just("true"),
        "quote": st.just("'"),
    },
)


def test_csv_is_read_as_spark_reads_it(spark: SparkSession, place: Path) -> None:
    @budget("CQ_ORACLE_EXAMPLES", 8)
    @given(
        files=st.lists(TEXTS, min_size=1, max_size=2),
        options=OPTIONS,
        header=st.booleans(),
        marked=st.booleans(),
    )
    @example(
        files=[(["1,x,2", "2,y,3", "3,z,4"], "\n", False)],
        options={"mode": "FAILFAST"},
        header=True,
        marked=True,
    )
    @example(
        files=[(["1,x,2", "", "2,y,3"], "\r", True)], options={"mode": "FAILFAST"}, header=False, marked=False
    )
    def check(files: Any, options: dict[str, str], header: bool, marked: bool) -> None:
        data = {}
        for n, (lines, end, last) in enumerate(files):
            text = end.join((["a,b,c"] if header else []) + lines) + (end if last else "")
            data[f"{n}.csv"] = (b"\xef\xbb\xbf" if marked else b"") + text.encode()
        write(place, data)
        theirs, ours = both(spark, place, {**options, "header": str(header).lower()})
        assert rows(lambda: ours.csv(COLUMNS)) == rows(lambda: theirs.csv(COLUMNS)), data
        if header:
            assert ours.csv_names() == theirs.csv_names()

    check()


def test_json_is_read_as_spark_reads_it(spark: SparkSession, place: Path) -> None:
    value = st.sampled_from(["1", "-7", '"x"', '"é"', "null", "1.5", "true", "[1]", '{"a": 1}', '"1"'])
    record = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), value, max_size=4).map(
        lambda each: "{" + ", ".join(f'"{k}": {v}' for k, v in each.items()) + "}"
    )
    line = st.one_of(
        record,
        record,
        st.lists(record, max_size=3).map(lambda some: f"[{', '.join(some)}]"),
        st.sampled_from(["", "  ", "{", "3"]),
    )

    @budget("CQ_ORACLE_EXAMPLES", 8)
    @given(lines=st.lists(line, max_size=5), mode=st.sampled_from(["FAILFAST", "FAILFAST", "PERMISSIVE"]))
    @example(lines=['[{"a": 1}, {"a": 2}]', '{"a": 3}'], mode="FAILFAST")
    def check(lines: list[str], mode: str) -> None:
        write(place, {"0.json": "\n".join(lines).encode(), "1.json.gz": gzip.compress(b'{"a": 5}\n')})
        theirs, ours = both(spark, place, {"mode": mode})
        assert rows(lambda: ours.json(COLUMNS)) == rows(lambda: theirs.json(COLUMNS)), lines

    check()


def test_parquet_is_read_as_spark_reads_it(spark: SparkSession, place: Path) -> None:
    table = pa.table(
        {
            "u8": pa.array([1, None, 255], pa.uint8()),
            "u32": pa.array([1, None, 2**32 - 1], pa.uint32()),
            "u64": pa.array([1, None, 2**64 - 1], pa.uint64()),
            "d": pa.array(["a", None, "a"]).dictionary_encode(),
            "f": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "t": pa.array([0, None, 10**15], pa.timestamp("us", "UTC")),
            "ntz": pa.array([0, None, 10**15], pa.timestamp("us")),
            "ms": pa.array([0, None, 10**9], pa.timestamp("ms", "Europe/Berlin")),
            "dec": pa.array([1, None, 3], pa.decimal128(12, 3)),
            "day": pa.array([0, None, 9], pa.date32()),
            "l": pa.array([[1], None, []], pa.list_(pa.int16())),
            "s": pa.array([{"x": 1, "y": "q"}, None, {"x": None, "y": None}]),
            "m": pa.array([[("k", 1.5)], None, []], pa.map_(pa.string(), pa.float32())),
            "big": pa.array(["x", None, "z"], pa.large_string()),
        }
    )
    write(place, {})
    pq.write_table(table, place / "in" / "0.parquet", row_group_size=1)
    pq.write_table(table.select(["u8", "d"]), place / "in" / "1.parquet")
    theirs, ours = both(spark, place, {}, Limits(scan_least_bytes=1, scan_most_bytes=2000))
    assert ours.parquet().dtypes == theirs.parquet().dtypes
    assert rows(ours.parquet) == rows(theirs.parquet)
    assert ours.count(ours.parquet()) == 6
    assert ours.bytes == theirs.bytes


@pytest.mark.parametrize(
    ("header", "options"),
    [
        ('"a","b"', {"escape": '"'}),
        ("a||b", {"sep": "||"}),
        ("a\x01b", {"sep": "\x01"}),
        ("a\tb", {"sep": "\\t"}),
        (" a ,b", {"ignoreleadingwhitespace": "true", "ignoretrailingwhitespace": "true"}),
        ("NULL,b", {"nullvalue": "NULL"}),
        ("'a,1',b", {"quote": "'"}),
        ("a", {}),
        ("# no\n\na,b", {"comment": "#"}),
    ],
)
def test_headers_are_read_as_spark_reads_them(
    spark: SparkSession, place: Path, header: str, options: Mapping[str, str]
) -> None:
    write(place, {"0.csv": b"", "1.csv": header.encode() + b"\n"})
    theirs, ours = both(spark, place, {**options, "header": "true", "mode": "FAILFAST"})
    assert ours.csv_names() == theirs.csv_names()


def test_files_without_lines_have_no_rows(spark: SparkSession, place: Path) -> None:
    write(place, {"0.csv": b"", "1.csv": b"\n \n"})
    _, ours = both(spark, place, {"header": "true", "mode": "FAILFAST"})
    assert ours.csv_names() == []
    assert ours.csv([]).collect() == []


@pytest.mark.parametrize(
    "line", ['\t[{"a": 1}]', '[{"a": 1}, null]', b'{"b": "\xe9"}', '[{"a": 1}, {"a": 2}]']
)
def test_json_of_other_forms(spark: SparkSession, place: Path, line: str | bytes) -> None:
    write(place, {"0.json": line if isinstance(line, bytes) else line.encode()})
    theirs, ours = both(spark, place, {"mode": "FAILFAST"})
    assert rows(lambda: ours.json(COLUMNS)) == rows(lambda: theirs.json(COLUMNS))


def test_parquet_files_of_several_writers(spark: SparkSession, place: Path) -> None:
    old = {"use_deprecated_int96_timestamps": True}
    times = pa.array([0, None, -(10**16)], pa.timestamp("us"))
    first = pa.table(
        {"Id": pa.array([1, 2, 3], pa.int64()), "t": times, "x": pa.array([0.5, None, 1], pa.float64())}
    )
    other = pa.table(
        {
            "iD": pa.array([4, 5, 6], pa.int32()),
            "z": ["p", "q", "r"],
            "x": pa.array([0.5, None, 1], pa.float32()),
        }
    )
    write(place, {"9.parquet": b""})
    pq.write_table(first, place / "in" / "0.parquet", **old)
    pq.write_table(other, place / "in" / "1.parquet")
    (place / "in" / "9.parquet").unlink()
    theirs, ours = both(spark, place, {})
    assert ours.parquet().dtypes == theirs.parquet().dtypes
    assert rows(ours.parquet) == rows(theirs.parquet) != "refused"
    write(place, {"0.parquet": b""})
    with pytest.raises(cq_engine.CQError, match=r"0\.parquet is empty"):
        both(spark, place, {})[1].parquet()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (pa.array([1.5], pa.float32()), pa.array([0.1], pa.float64())),
        (pa.array([1], pa.date32()), pa.array([10**12], pa.timestamp("us"))),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.array([1], pa.timestamp("us"))),
        (pa.array([1], pa.int32()), pa.array(["7"])),
        (pa.array(["1"]), pa.array([7], pa.int32())),
        (pa.array([{"p": 1}]), pa.array([{"q": 1}])),
        (pa.array([1], pa.int32()), pa.array([2**40], pa.int64())),
    ],
)
def test_other_types_in_other_files_are_refused(spark: SparkSession, place: Path, one: Any, two: Any) -> None:
    write(place, {})
    for n, values in enumerate((one, two)):
        pq.write_table(pa.table({"a": values}), place / "in" / f"{n}.parquet")
    frame = both(spark, place, {})[1].parquet()
    with (
        pytest.raises(cq_engine.CQError, match=r"1\.parquet has a as .*, other files as"),
        translate_errors(),
    ):
        frame.collect()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"a": [1], "A": [2]}), "names differ in their letters' case only"),
        (pa.table({"a": pa.array([1], pa.timestamp("ns"))}), "nanoseconds"),
        (pa.table({"a": pa.array([[[1]]], pa.list_(pa.list_(pa.timestamp("ns"))))}), "nanoseconds"),
    ],
)
def test_parquet_that_spark_does_not_read(
    spark: SparkSession, place: Path, table: pa.Table, said: str
) -> None:
    write(place, {})
    pq.write_table(table, place / "in" / "0.parquet")
    theirs, ours = both(spark, place, {})
    assert rows(theirs.parquet) == "refused"
    with pytest.raises(cq_engine.CQError, match=said):
        ours.parquet()


@pytest.mark.parametrize(
    "name",
    ["multiLine", "lineSep", "encoding", "pathGlobFilter", "recursiveFileLookup", "enforceSchema", "mode"],
)
def test_what_only_spark_heeds_is_refused(spark: SparkSession, place: Path, name: str) -> None:
    given = {
        "multiLine": "true",
        "recursiveFileLookup": "true",
        "encoding": "UTF-16",
        "enforceSchema": "false",
        "mode": "DROPMALFORMED",
    }.get(name, "x")
    _, ours = both(spark, place, {name: given})
    write(place, {"a.csv": b"a,b,c\n"})
    for reading in (lambda: ours.csv(COLUMNS), ours.csv_names, lambda: ours.json(COLUMNS), ours.parquet):
        with pytest.raises(cq_engine.CQError, match=f"cannot heed {name}"):
            reading()
    assert both(spark, place, {"multiLine": "false", "encoding": "utf-8"})[1].csv_names() == ["a", "b", "c"]


def test_what_cannot_be_read_says_which_file(spark: SparkSession, place: Path) -> None:
    write(place, {"a.parquet": b"no parquet"})
    with pytest.raises(cq_engine.CQError, match=r"in/a\.parquet"):
        both(spark, place, {})[1].parquet()
    pq.write_table(pa.table({"a": [1]}), place / "in" / "a.parquet")
    (place / "in" / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(cq_engine.CQError, match=r"in/b\.parquet") as caught, translate_errors():
        both(spark, place, {})[1].parquet().collect()
    assert "warehouse" not in caught.value.hint
    pq.write_table(pa.table({"a": pa.array([1], pa.decimal256(50, 2))}), place / "in" / "a.parquet")
    with pytest.raises(cq_engine.CQError, match="types that Spark has not"):
        both(spark, place, {})[1].parquet()
    store = Streams(str(place))
    with pytest.raises(cq_engine.CQError, match=r"in/gone\.csv"):
        first_line(store, [Found("in/gone.csv", 3, 0)])


def test_a_long_file_comes_in_many_shares(spark: SparkSession, place: Path) -> None:
    lines = [f"{n},{'x' * (n % 50)},{n / 2}" for n in range(20_000)]
    write(place, {"a.csv": "\n".join(["a,b,c", *lines]).encode()})
    files = OutsideFiles(
        spark,
        Streams(str(place)),
        "in",
        {"header": "true", "mode": "FAILFAST"},
        Limits(scan_least_bytes=10_000, scan_most_bytes=50_000),
    )
    frame = files.csv(COLUMNS)
    assert frame.select("a").distinct().count() == frame.count() == 20_000
    assert frame.selectExpr("sum(length(b))").first() == (sum(n % 50 for n in range(20_000)),)
    assert read_lines(spark, files.store, files.files, files.limits).rdd.getNumPartitions() > 10


def test_copy_from_a_bucket(
    tmp_path: Path,
    spark: SparkSession,
    objects: ObjectStoreServer,
    bucket_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose keys are in the environment, into a warehouse that lies elsewhere; Spark has no file system for it."""
    for name in ("access_key_id", "secret_access_key", "region", "endpoint_url"):
        monkeypatch.setenv(f"AWS_{name.upper()}", objects.access[name])
    found = open_beside(bucket_url, LocalStore(str(tmp_path)))
    assert found is not None
    store, inside = found
    rows = [(n, f"n{n}", n / 4) for n in range(500)]
    files = {
        "c/1.csv": ("c,a\n" + "".join(f"{c},{a}\n" for a, _, c in rows)).encode(),
        "c/2.csv.gz": gzip.compress(b"c,a\n7,1000\n"),
        "j/1.json": "".join(f'{{"a": {a}, "b": "{b}"}}\n' for a, b, _ in rows).encode(),
    }
    for name, data in files.items():
        path = store.path(f"{inside}/{name}")
        with store.filesystem.open_output_stream(
            path, compression=None
        ) as sink:  # or it compresses by the name
            sink.write(data)
    with store.writing(f"{inside}/p/1.parquet") as sink:
        pq.write_table(
            pa.table({"a": [a for a, _, _ in rows], "b": [b for _, b, _ in rows]}), sink, row_group_size=50
        )
    with cq_engine.connect(
        tmp_path / "w", spark=spark, scheduler=False, limits=Limits(inline_bytes=0)
    ) as engine:
        for n, (path, where) in enumerate(
            [("c", "c IS NULL"), ("j/*.json", "b <> concat('n', a)"), ("p/1.parquet", "b <> concat('n', a)")]
        ):
            engine.execute(f"CREATE TABLE t{n} (a INT PRIMARY KEY, b STRING, c DOUBLE)")
            engine.execute(f"COPY INTO t{n} FROM '{bucket_url}/{path}'{' FORMAT csv' if path == 'c' else ''}")
            got = engine.execute(f"SELECT count(*), sum(a), count_if({where}) FROM t{n}").fetchall()
            assert [tuple(row) for row in got] == [(501, 124750 + 1000, 0) if n == 0 else (500, 124750, 0)]
        with pytest.raises(cq_engine.CQError, match="no files"):
            engine.execute(f"COPY INTO t0 FROM '{bucket_url}/none.csv'")
        for text, said in (
            ("z\n1\n", "'z', which COPY INTO t0 does not load"),
            ("a\n9999\nno number\n", r"/z\.csv has a line that is no \(a int\): no number"),
        ):
            with store.writing(f"{inside}/z.csv") as sink:
                sink.write(text.encode())
            with pytest.raises(cq_engine.CQError, match=said):
                engine.execute(f"COPY INTO t0 FROM '{bucket_url}/z.csv'")
        assert engine.execute("SELECT count(*) FROM t0").fetchall()[0][0] == 501


def test_what_is_compressed_otherwise_is_refused(spark: SparkSession, place: Path) -> None:
    write(place, {"a.csv.snappy": b"no text"})
    with pytest.raises(cq_engine.CQError, match=r"a\.csv\.snappy is compressed"):
        both(spark, place, {})[1].csv(COLUMNS)


def test_ctrl_c_does_not_wait_for_a_store(spark: SparkSession, place: Path) -> None:
    write(place, {"a.csv": b"a,b,c\n"})
    silent, asked = threading.Event(), threading.Event()
    waited: list[bool] = []

    class Silent(Streams):
        def path(self, path: str) -> str:
            if threading.current_thread() is not threading.main_thread():
                asked.set()
                waited.append(silent.wait(60))
            return super().path(path)

    def interrupt() -> None:
        asked.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    files = OutsideFiles(spark, Silent(str(place)), "in", {}, LIMITS)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            files.csv_names()
        assert waited == [], "the store is silent still"
    finally:
        silent.set()
