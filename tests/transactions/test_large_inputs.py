"""What `apply_changes` and COPY take and refuse is the same with executors as on the driver: generated columns of every type."""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.core.types import arrow_type

TEXTS = ["1", "-7", "1.5", "1e3", "x", "", "true", "2024-02-29", "2024-02-30", "2024-02-29T10:00:00",
         "2024-02-29 10:00:00Z", "2024-02-29 10:00:00+02:00", "é"]  # fmt: skip
BYTES = [b"", b"1", b"abc", b"\xff\xfe"]
DAYS = [
    dt.date(1, 1, 1),
    dt.date(1582, 10, 10),
    dt.date(1970, 1, 1),
    dt.date(2024, 2, 29),
    dt.date(9999, 12, 31),
]
TIMES: list[dt.datetime] = [
    dt.datetime(1970, 1, 1),  # noqa: DTZ001
    dt.datetime(2024, 3, 31, 2, 30),  # noqa: DTZ001
    dt.datetime(1999, 12, 31, 23, 59, 59, 999000),  # noqa: DTZ001
]
FLOATS = [0.0, -0.0, 1.0, 1.5, -3.0, 1e10, 1e30, 16777217.0, float("nan"), float("inf")]
DECIMALS = [
    Decimal("0"),
    Decimal("1.00"),
    Decimal("1.50"),
    Decimal("-1.25"),
    Decimal("999.99"),
    Decimal("99999.99"),
]
ZONES = [None, "UTC", "+02:00", "Europe/Berlin"]


def whole(bits: int, signed: bool) -> list[int]:
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return [n for n in (0, 1, -1, 100, 128, 40_000, 3 * 10**9, least, most) if least <= n <= most]


SOURCES: dict[pa.DataType, list[Any]] = {
    **{pa.type_for_alias(f"int{bits}"): whole(bits, True) for bits in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"uint{bits}"): whole(bits, False) for bits in (8, 16, 32, 64)},
    pa.float32(): [struct.unpack("f", struct.pack("f", x))[0] for x in FLOATS], pa.float64(): FLOATS,
    pa.decimal128(7, 2): DECIMALS, pa.decimal128(38, 10): [*DECIMALS, Decimal("1.005"), Decimal(10) ** 27],
    pa.decimal256(50, 2): DECIMALS,
    pa.string(): TEXTS, pa.large_string(): TEXTS, pa.string_view(): TEXTS, pa.dictionary(pa.int8(), pa.string()): TEXTS,
    pa.binary(): BYTES, pa.large_binary(): BYTES, pa.bool_(): [True, False], pa.null(): [],
    pa.date32(): DAYS, pa.date64(): DAYS,
    **{pa.timestamp(unit, zone): TIMES for unit in ("s", "ms", "us", "ns") for zone in ZONES},
}  # fmt: skip
SPARK = ["tinyint", "smallint", "int", "bigint", "float", "double", "decimal(7,2)", "decimal(38,10)", "string", "binary",
         "boolean", "date", "timestamp", "timestamp_ntz", "string collate UTF8_LCASE"]  # fmt: skip
"""The types of a DataFrame, and of the table's columns."""
NATURAL: dict[str, list[pa.DataType]] = {
    kind: [
        each for each in SOURCES
        if each == arrow_type(kind) or (kind in ("tinyint", "smallint", "int", "bigint") and pa.types.is_integer(each))
        or (kind.startswith("decimal") and pa.types.is_decimal(each))
        or (kind.startswith("string") and (pa.types.is_large_string(each) or pa.types.is_dictionary(each)))
        or (kind.startswith("timestamp") and pa.types.is_timestamp(each))
    ]
    for kind in SPARK
}  # fmt: skip
TOLD = ["int", "bigint", "string", "date", "double", "timestamp", "boolean", "decimal(7,2)"]
"""The types of a DataFrame's columns that name a transaction or an order."""
TOLD_ARROW = [
    kind for kind in SOURCES
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_date32(kind) or pa.types.is_dictionary(kind)
    or kind in (pa.string(), pa.string_view(), pa.timestamp("us"), pa.timestamp("s", "+02:00"), pa.bool_())
]  # fmt: skip
_names = (f"t{n}" for n in itertools.count())


@dataclass(frozen=True)
class Case:
    """A table's columns, and changes of it with what they are given as."""

    ddl: str
    changes: pa.Table
    form: str
    roles: dict[str, str]


def values_of(source: pa.DataType, target: str | None) -> st.SearchStrategy[Any]:
    """Values of an Arrow type; with `target` those that Arrow casts to it."""
    found = [each for each in SOURCES[source] if target is None or fits(each, source, target)]
    return st.sampled_from([*found, *found, None]) if found else st.none()


def fits(value: Any, source: pa.DataType, target: str) -> bool:
    try:
        pa.array([value], source).cast(arrow_type(target))
    except (pa.ArrowException, ValueError):
        return False
    return True


def lists(values: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=count, max_size=count)


@st.composite
def value_columns(draw: st.DrawFn, form: str, count: int) -> tuple[str, pa.Array]:
    """A column's type in the table, and what is given for it: mostly what fits."""
    target = draw(st.sampled_from(SPARK))
    if form == "frame":
        source = arrow_type(draw(st.sampled_from([*[target] * 40, *SPARK])))
    else:
        source = draw(st.sampled_from([*NATURAL[target] * 15, *SOURCES]))
    fitting = draw(st.sampled_from([target, target, target, None]))
    values = pa.array(draw(lists(values_of(source, fitting), count)), source)
    return target + draw(st.sampled_from(["", "", "", "", " NOT NULL"])), values


@st.composite
def role_columns(draw: st.DrawFn, form: str, count: int, most: int) -> pa.Array | None:
    """Values of at most so many, by which changes are told apart or ordered; None: there is no such column."""
    kinds = [arrow_type(kind) for kind in TOLD] if form == "frame" else TOLD_ARROW
    kind = draw(st.sampled_from([None, *kinds]))
    if kind is None:
        return None
    few = draw(st.lists(st.sampled_from([*SOURCES[kind], None]), min_size=1, max_size=most))
    return pa.array(draw(lists(st.sampled_from(few), count)), kind)


@st.composite
def spoiled(draw: st.DrawFn, table: pa.Table) -> pa.Table:
    """The columns in another order and case, and sometimes one fewer or more."""
    case = draw(st.sampled_from([str, str, str.upper, str.lower]))
    names = draw(st.permutations(table.column_names))
    table = pa.table({case(name): table.column(name) for name in names})
    if draw(st.integers(0, 9)) == 0:
        table = table.drop_columns([draw(st.sampled_from(table.column_names))])
    if draw(st.integers(0, 4)) == 0:
        table = table.append_column("more", pa.array(range(table.num_rows)))
    if draw(st.integers(0, 9)) == 0:
        table = table.append_column("K", table.column(0))
    return table


@st.composite
def cases(draw: st.DrawFn, form: str) -> Case:
    count = draw(st.integers(4, 7))
    kinds = [pa.int32(), pa.int64()] if form == "frame" else [pa.int32(), pa.uint8(), pa.int64()]
    columns = {"k": pa.array(range(count), draw(st.sampled_from(kinds)))}
    ddl = ["k INT PRIMARY KEY"]
    for name in ("Va", "wb"):
        definition, columns[name] = draw(value_columns(form, count))
        ddl.append(f"{name} {definition}")
    words = draw(lists(st.sampled_from(["I", "I", "S", "K"]), count))
    wrong = draw(st.integers(0, 4 * count))
    spoil = draw(st.sampled_from(["U", "?", None]))
    columns["op"] = pa.array([spoil if n == wrong else each for n, each in enumerate(words)], pa.string())
    roles = {}
    for role, most in (("transaction", 2), ("order", 4)):
        told = draw(role_columns(form, count, most))
        if told is not None:
            columns[role], roles[role] = told, role
    return Case(", ".join(ddl), draw(spoiled(pa.table(columns))), form, roles)


@st.composite
def files(draw: st.DrawFn, kind: str) -> Case:
    """Rows to be loaded from a file: its name without what only `apply_changes` has, and its format."""
    case = draw(cases("path"))
    names = case.changes.column_names
    kept = [n for n, name in enumerate(names) if name.lower() in ("k", "va", "wb", "more")]
    return Case(case.ddl, case.changes.select(kept), kind, {})


def spark_name(kind: pa.DataType) -> str:
    return next(each for each in SPARK if arrow_type(each) == kind)


def text_of(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


class Pair:
    """An engine that takes such changes on the driver, and one that leaves them to executors."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self.path = path
        self.seen: Counter[tuple[str, str]] = Counter()
        self.engines = [
            cq_engine.connect(path / str(n), spark=spark, scheduler=False, limits=each)
            for n, each in enumerate((Limits(), Limits(apply_rows=3, pending_rows=3)))
        ]

    def check(self, case: Case) -> None:
        self._note(case, next(_names), self._outcome)

    def check_copy(self, case: Case) -> None:
        """`COPY INTO` of the rows as a file of the format `form`."""
        name = next(_names)
        path = self.path / f"{name}.{case.form}"
        if case.form == "parquet":
            pq.write_table(case.changes, path)
        elif case.form == "csv":
            values = [map(text_of, column.to_pylist()) for column in case.changes.columns]
            with path.open("w") as file:
                csv.writer(file).writerows([case.changes.column_names, *zip(*values)])
        self._note(case, name, self._copied)

    def _copied(self, engine: cq_engine.Engine, name: str, case: Case) -> Any:
        engine.execute(f"CREATE TABLE {name} ({case.ddl})")
        try:
            engine.execute(f"COPY INTO {name} FROM '{self.path / name}.{case.form}'")
        except cq_engine.CQError as error:
            assert not engine.execute(f"SELECT * FROM {name}").fetchall()
            return type(error).__name__, error.message, error.detail
        found = engine.execute(f"SELECT * FROM {name}").to_arrow()
        return 1, [(found.schema, sorted(map(repr, found.to_pylist())))]

    def _note(self, case: Case, name: str, outcome: Callable[[cq_engine.Engine, str, Case], Any]) -> None:
        found = [outcome(engine, name, case) for engine in self.engines]
        assert found[1] == found[0]
        kind = found[0][0] if isinstance(found[0][0], str) else "taken"
        self.seen[case.form, kind] += 1

    def _outcome(self, engine: cq_engine.Engine, name: str, case: Case) -> Any:
        engine.execute(f"CREATE TABLE {name} ({case.ddl})")
        given: Any = case.changes
        if case.form == "frame":
            columns = [Column(each.name, spark_name(each.type)) for each in given.schema]
            given = engine.services.reader.frame(given, columns)
        elif case.form == "path":
            given = str(self.path / f"{name}.parquet")
            pq.write_table(case.changes, given)
        before = engine.catalog.newest_version
        try:
            done = engine.apply_changes({name: given}, **case.roles)
        except cq_engine.CQError as error:
            assert engine.catalog.newest_version == before
            return type(error).__name__, error.message, error.detail
        parts = [
            (engine.execute(f"SELECT * FROM {name} VERSION AS OF {version}").to_arrow()) for version in done
        ]
        return len(done), [(part.schema, sorted(map(repr, part.to_pylist()))) for part in parts]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("inputs"), spark)
    for engine in made.engines:
        engine.execute(
            "SELECT 1"
        ).fetchall()  # the first statement makes room for deep ones, which hypothesis would report
    yield made
    for engine in made.engines:
        engine.close()


def given_as(given_cases: st.SearchStrategy[Case], examples: int) -> Any:
    often = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # an example takes seconds
    )
    return lambda test: often(given(case=given_cases)(test))


@given_as(cases("arrow"), 30)
def test_arrow_tables(pair: Pair, case: Case) -> None:
    pair.check(case)


@given_as(cases("frame"), 12)
def test_dataframes(pair: Pair, case: Case) -> None:
    pair.check(case)


@given_as(cases("path"), 9)
def test_files(pair: Pair, case: Case) -> None:
    pair.check(case)


@given_as(files("parquet"), 10)
def test_copies_of_parquet(pair: Pair, case: Case) -> None:
    pair.check_copy(case)


@given_as(files("csv"), 10)
def test_copies_of_csv(pair: Pair, case: Case) -> None:
    pair.check_copy(case)


def test_that_enough_was_taken_and_refused(pair: Pair) -> None:
    """Of each form, when all of them ran."""
    for form in {form for form, _ in pair.seen}:
        assert pair.seen[form, "taken"] > 0
        assert pair.seen[form, "AnalysisError"] > 0


def of_rows(count: int, **columns: pa.Array) -> pa.Table:
    return pa.table({"op": ["S"] * count, "k": pa.array(range(count), pa.int32()), **columns})


def outcomes(pair: Pair, changes: dict[str, Any], **roles: str) -> Any:
    """That of both engines, which must be the same."""
    found = []
    for engine in pair.engines:
        try:
            found.append(len(engine.apply_changes(changes, **roles)))
        except cq_engine.CQError as error:
            found.append((type(error).__name__, error.message, error.detail))
    assert found[1] == found[0]
    return found[0]


def create(pair: Pair, columns: str, *names: str) -> None:
    for engine, name in itertools.product(pair.engines, names):
        engine.execute(f"CREATE TABLE {name} (k INT PRIMARY KEY, {columns})")


def test_an_error_names_the_column(pair: Pair) -> None:
    create(pair, "v INT, day DATE", "named")
    changes = of_rows(5, v=pa.array([1.0, 2.0, 1.5, None, 0.0]), day=pa.array(["2024-02-29"] * 5))
    kind, message, detail = outcomes(pair, {"named": changes})
    assert (kind, message) == ("AnalysisError", "a value does not fit column named.v, which is int")
    assert "1.500000 was truncated" in detail
    assert outcomes(pair, {"named": changes.set_column(2, "v", pa.array([1.0] * 5))}) == 1
    assert pair.engines[1].execute("SELECT DISTINCT v, day FROM named").fetchall() == [
        (1, dt.date(2024, 2, 29))
    ]


def test_transactions_of_several_tables_in_several_types(pair: Pair) -> None:
    create(pair, "v INT", "one", "two", "three")
    values = [7, 7, 3, 9, 3]
    frame = [
        engine.services.reader.frame(
            of_rows(5, v=pa.array([1] * 5), tx=pa.array(values, pa.int64())),
            [Column("op", "string"), Column("k", "int"), Column("v", "bigint"), Column("tx", "bigint")],
        )
        for engine in pair.engines
    ]
    found = [
        engine.apply_changes(
            {
                "one": of_rows(5, v=pa.array([1] * 5), tx=pa.array(values, pa.uint8())),
                "two": of_rows(5, v=pa.array([1] * 5), tx=pa.array(map(float, values))),
                "three": three,
            },
            transaction="tx",
        )
        for engine, three in zip(pair.engines, frame)
    ]
    assert len(found[0]) == len(found[1]) == 3
    for name, version in itertools.product(("one", "two", "three"), range(3)):
        text = f"SELECT k FROM {name} VERSION AS OF "
        rows = [sorted(e.execute(text + str(f[version])).fetchall()) for e, f in zip(pair.engines, found)]
        assert rows[0] == rows[1]
        assert len(rows[0]) == (2, 4, 5)[version]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())])])
@pytest.mark.parametrize("role", ["op", "transaction", "order"])
def test_roles_of_nested_types(pair: Pair, kind: pa.DataType, role: str) -> None:
    name = next(_names)
    create(pair, "v INT", name)
    changes = of_rows(5, v=pa.array([1] * 5), nested=pa.nulls(5, kind))
    result = outcomes(pair, {name: changes}, **{role: "nested"})
    assert result[0] == "AnalysisError"
    assert "column nested" in result[1]


def test_commit_times_that_do_not_compare(pair: Pair) -> None:
    create(pair, "v INT", "early", "late")
    now = dt.datetime.now(dt.timezone.utc)
    aware, naive = pa.array([now] * 5, pa.timestamp("us", "UTC")), pa.array([now.replace(tzinfo=None)] * 5)
    changes = {
        "early": of_rows(5, v=pa.array([1] * 5), at=aware),
        "late": of_rows(5, v=pa.array([1] * 5), at=naive),
    }
    assert outcomes(pair, changes, commit_time="at")[0] == "AnalysisError"
    assert outcomes(pair, {"late": changes["late"]}, commit_time="at") == 1


def test_the_first_null_is_shown(pair: Pair) -> None:
    create(pair, "v INT NOT NULL, w INT NOT NULL", "nulls", "more_nulls")
    v, w = pa.array([1, 1, None, None, 1]), pa.array([None, 1, 1, None, 1])
    changes = of_rows(5, v=v, w=w, seq=pa.array([5, 4, 3, 2, 1]))
    result = outcomes(pair, {"nulls": changes}, order="seq")
    assert "nulls.v must not be NULL" in result[1]
    assert "k = 3" in result[2]
    updates = changes.set_column(0, "op", pa.array(["U"] * 5))
    assert "nulls.v" in outcomes(pair, {"nulls": changes, "more_nulls": updates}, order="seq")[1]


def test_keys_before_the_change_that_do_not_fit(pair: Pair) -> None:
    create(pair, "v INT", "moved")
    changes = of_rows(2, v=pa.array([1, 1]), old_k=pa.array(["x", None]))
    result = outcomes(pair, {"moved": changes})
    assert result[1] == "a value does not fit column moved.old_k, which is int"
