"""Footers, statistics and pruning."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.catalog import tables
from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.catalog.tables import data_file, data_files, prune, write_parquet

UTC = timezone.utc


def stats_of(tmp_path: Path, **columns: pa.Array) -> dict[str, tuple[object, object]]:
    path = tmp_path / "warehouse" / "x.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return dict(data_file(path.name, LocalStore(str(path.parent)), columns).stats)


def test_statistics_are_json_values(tmp_path: Path) -> None:
    moment = datetime.fromisoformat("2020-01-01T12:00:00.000005")
    found = stats_of(
        tmp_path,
        i=pa.array([3, None, 1, 2]),
        s=pa.array(["b", "a", None, "é"]),
        b=pa.array([True, False, True, None]),
        d=pa.array([date(2020, 1, 2), date(1999, 1, 1), None, None]),
        t=pa.array([moment.replace(tzinfo=UTC)] * 4, pa.timestamp("us", tz="UTC")),
        n=pa.array([moment] * 4, pa.timestamp("us")),
        m=pa.array([Decimal("-1.50"), Decimal("2.25"), None, None], pa.decimal128(18, 2)),
        nested=pa.array([{"i": 1, "x": [1]}] * 4),
        after=pa.array([7, 8, 9, 10], pa.int8()),
    )
    assert found == {
        "i": (1, 3),
        "s": ("a", "é"),
        "b": (False, True),
        "d": ("1999-01-01", "2020-01-02"),
        "t": ("2020-01-01T12:00:00.000005+00:00",) * 2,
        "n": ("2020-01-01T12:00:00.000005",) * 2,
        "m": ("-1.50", "2.25"),
        "after": (7, 10),
    }


@pytest.mark.parametrize("nested", [False, True])
def test_dictionaries_of_what_is_alike(nested: bool, tmp_path: Path) -> None:
    """Columns whose values are nearly all different have none, but where there are nested columns beside them."""
    count = 20_000
    rows = pa.table({"id": pa.array(range(count), pa.int64()), "kind": ["insert"] * count})
    few = {"k": [n % 1_000 for n in range(count)], "run": [n // 10 for n in range(count)]}
    for name, values in (*few.items(), ("name", [f"name {n}" for n in range(count)])):
        rows = rows.append_column(name, pa.array(values))
    if nested:
        rows = rows.append_column("tags", pa.array([["a", "b"]] * count))
    rows = pa.concat_tables([rows.slice(0, 9_999), rows.slice(9_999)])
    store = LocalStore(str(tmp_path))
    file = write_parquet(rows, "x.parquet", store, ["id"])
    group = pq.read_metadata(tmp_path / file.path).row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    having = {c.path_in_schema for c in columns if c.has_dictionary_page}
    everywhere = {"id", "k", "run", "kind", "name", "tags.list.element"}
    assert having == (everywhere if nested else {"k", "run", "kind"})
    assert pq.read_table(tmp_path / file.path).equals(rows)


def test_wide_columns_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of a few thousand large values would be copied."""
    monkeypatch.setattr(tables.pc, "unique", lambda _: pytest.fail("looked at"))
    assert tables.dictionaries(pa.table({"wide": ["x" * 300] * 10_000})) == ["wide"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, float("nan"), -0.0]),
        pa.array([Decimal(1)], pa.decimal128(38, 2)),
        pa.array(["x" * 65, "a"]),
        pa.array([b"a"]),
        pa.array([None, None], pa.int64()),
        pa.array([[1]]),
        pa.array([3_000_000, 1], pa.date32()),  # the year 10183, which Python does not have
        pa.array([300_000_000_000_000_000, 1], pa.timestamp("us", tz="UTC")),
    ],
)
def test_where_statistics_cannot_be_used_there_are_none(tmp_path: Path, column: pa.Array) -> None:
    assert stats_of(tmp_path, c=column) == {}


def test_empty_and_hidden_files_are_skipped(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for name, rows in (("b.parquet", 2), ("a.parquet", 0), ("_temporary/c.parquet", 1), (".d.parquet", 1)):
        write_parquet(pa.table({"k": pa.array(range(rows), pa.int64())}), f"t/{name}", store)
    (file,) = data_files("t", store, ["k", "unknown"])
    assert (file.path, file.rows, file.stats) == ("t/b.parquet", 2, {"k": (0, 1)})
    assert file.bytes == (tmp_path / "t/b.parquet").stat().st_size


def test_pruning_is_conservative() -> None:
    known = DataFile("a", 1, 1, {"k": (10, 20)})
    unknown = DataFile("b", 1, 1)
    files = [known, unknown]
    assert prune(files, "k", pa.array([15])) == files
    assert prune(files, "k", pa.array([10])) == files
    assert prune(files, "k", pa.array([9, 21])) == [unknown]
    assert prune(files, "k", pa.array([9, None])) == files
    assert prune(files, "k", pa.array([1.5])) == files
    assert prune(files, "k", pa.array(["15"])) == files
    assert prune(files, "k", pa.array([], pa.int64())) == []


_MOMENTS = st.datetimes(datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2100-01-01"))
_COLUMNS = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.text(max_size=4), min_size=1).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.dates(), min_size=1).map(lambda v: pa.array(v, pa.date32())),
    st.lists(_MOMENTS, min_size=1).map(lambda v: pa.array(v, pa.timestamp("us"))),
    st.lists(_MOMENTS, min_size=1).map(
        lambda v: pa.array(
            [m.replace(tzinfo=timezone(timedelta(hours=3))) for m in v], pa.timestamp("us", tz="UTC")
        )
    ),
    st.lists(st.decimals(-999, 999, places=2), min_size=1).map(lambda v: pa.array(v, pa.decimal128(10, 2))),
    st.lists(st.booleans(), min_size=1).map(pa.array),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_COLUMNS, st.integers(1, 4), st.data())
def test_a_file_that_holds_a_value_is_never_pruned(
    tmp_path_factory: pytest.TempPathFactory, column: pa.Array, size: int, data: st.DataObject
) -> None:
    store = LocalStore(str(tmp_path_factory.mktemp("prune")))
    parts = [column[start : start + size] for start in range(0, len(column), size)]
    files = [
        write_parquet(pa.table({"c": part}), f"{i}.parquet", store, ["c"]) for i, part in enumerate(parts)
    ]
    place = data.draw(st.integers(0, len(column) - 1))
    kept = prune(files, "c", column[place : place + 1])
    assert files[place // size] in kept
    if len(parts) > 1 and pa.types.is_integer(column.type):
        bounds = [(min(p.to_pylist()), max(p.to_pylist())) for p in parts]
        wanted = column[place].as_py()
        assert kept == [f for f, (low, high) in zip(files, bounds) if low <= wanted <= high]
