"""Row groups that a look-up leaves out have no row that it wants."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from cq_engine.storage.row_groups import RowGroups

KINDS: dict[str, pa.DataType] = {
    "int": pa.int64(), "text": pa.string(), "day": pa.date32(), "real": pa.float64(),
}  # fmt: skip


def _value(kind: str, chance: random.Random) -> Any:
    number = chance.randint(-40, 40)
    if chance.random() < 0.1:
        return None
    if kind == "text":
        return chance.choice(["", "a", "ä", "z", "\U0001f600", "￿"]) * (number % 3) + str(number)
    if kind == "day":
        return dt.date(1960, 1, 1) + dt.timedelta(days=number)
    return number if kind == "int" else float(number)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_pruned_holds_nothing_wanted(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    groups = RowGroups(1_024)
    paths = []
    for number in range(3):
        rows: dict[str, list[Any]] = {k: [_value(k, chance) for _ in range(60)] for k in KINDS}
        if number < 2:
            rows["int"].sort(key=lambda v: (v is not None, v))
        table = pa.table({k: pa.array(v, KINDS[k]) for k, v in rows.items()})
        paths.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(
            table, paths[-1], row_group_size=7, write_statistics=["int", "text"] if number else True
        )
    for _ in range(20):
        dataset = ds.dataset(paths, format="parquet")
        names = chance.sample(sorted(KINDS), chance.randint(1, 2))
        restrict = {
            n: pa.array([_value(n, chance) for _ in range(chance.randint(0, 4))], KINDS[n]) for n in names
        }
        kept, shares = groups.prune(dataset, restrict)
        left = kept.to_table()
        assert len(shares) == len(paths)
        assert all(0 <= share <= 1 for share in shares)
        assert any(shares) or not left.num_rows
        assert _wanted(left, restrict) == _wanted(dataset.to_table(), restrict)


def _wanted(table: pa.Table, restrict: dict[str, pa.Array]) -> list[str]:
    for name, values in restrict.items():
        table = table.filter(pc.is_in(table.column(name), value_set=values))
    return sorted(map(str, table.to_pylist()))


def test_few_groups_are_left(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"k": range(1_000)}), path, row_group_size=10)
    for wanted, count in (([5, 7, 512], 20), ([2_000], 0)):
        left, shares = RowGroups(1_024).prune(ds.dataset(path, format="parquet"), {"k": pa.array(wanted)})
        assert left.to_table().num_rows == count
        assert shares == [count / 1_000]


def test_days_and_times_that_python_lacks(tmp_path: Path) -> None:
    """They have no bounds, and keep nobody from looking up the rows that have them."""
    path = str(tmp_path / "rows.parquet")
    days, times = pa.array([1, 3_000_000], pa.date32()), pa.array([1, 3 * 10**17], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"k": [1, 2], "day": days, "time": times}), path, row_group_size=1)
    for restrict, count in (({"k": pa.array([2])}, 1), ({"day": days[1:]}, 2), ({"day": days[:1]}, 2)):
        left, _ = RowGroups(1_024).prune(ds.dataset(path, format="parquet"), restrict)
        assert left.to_table().num_rows == count
