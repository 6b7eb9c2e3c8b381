"""What a table's mesh holds is within its budget, whatever keys, rows and pages are."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cq_engine.core.columns import Column
from cq_engine.mesh.hashed_keys import HashedKeys
from cq_engine.mesh.packed_keys import Keys
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.staged import Staged
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image, Page
from tests.mesh.memory import COLUMNS, SCHEMA, Memory, bag, make


@pytest.mark.parametrize(("step", "at_once"), [(1, 15_000), (20, 15_000), (10**6, 13_000), (10**12, 10_000)])
def test_a_fast_stream_stays_within_the_budget(step: int, at_once: int) -> None:
    """More keys than the budget has room for wait outside, and rows that match go to files."""
    chance = random.Random(5)
    tables = {
        Page("f", g): pa.table(
            {
                "k": pa.array(range(g * 1_000 * step, (g + 1) * 1_000 * step, step), pa.int64()),
                "g": pa.array([g] * 1_000, pa.int32()),
                "note": pa.array([f"{n:0100d}" for n in range(1_000)]),
            },
            SCHEMA,
        )
        for g in range(20)
    }
    budget = 200_000
    memory = Memory(tables)
    mesh = TableMesh(memory, budget)
    keys = pa.array([step * n for n in chance.sample(range(20_000), 15_000)], pa.int64())
    found = mesh.rows(Image(tables), None, {"k": keys}, COLUMNS)
    assert found.num_rows == 15_000
    assert mesh.counters.peak <= budget
    assert mesh.counters.peak > budget / 8, "the budget is used"
    assert at_once / 1.5 < mesh.counters.largest_window <= at_once, (
        "the fewer bytes a key takes, the more of them are in the window"
    )
    assert mesh.counters.spilled > 0
    assert max(nbytes for _, nbytes in memory.parts) <= budget * 3 / 4
    assert len(memory.parts) > len(memory.log), "a page that is too large is decoded in parts"


@pytest.mark.parametrize("wanting", [0, 1, 3, 40, 300])
def test_a_page_that_is_too_large_is_decoded_by_columns(wanting: int) -> None:
    """The keys first, then the others in as few groups as what the window leaves has room for; in parts of rows where one is larger
    than that, or where many rows match."""
    chance = random.Random(wanting)
    columns = (*COLUMNS, *(Column(f"v{n}", "bigint") for n in range(6)))
    tables = {}
    for g in range(6):
        narrow = make(chance, 300)
        keys = pa.array([300 * g + n for n in range(299)] + [None], pa.int64())
        more = {
            c.name: pa.array([chance.choice([None, n]) for n in range(300)], pa.int64()) for c in columns[3:]
        }
        tables[Page("f", g)] = pa.table(
            {"k": keys, "g": narrow.column("g"), "note": narrow.column("note"), **more}
        )
    budget, memory = 10_000, Memory(tables)
    mesh = TableMesh(memory, budget)
    wanted = [300 * g + n for g in (1, 4) for n in chance.sample(range(299), min(299, wanting))]
    restrict = {"k": pa.array([*wanted, None, -1], pa.int64()) if wanting else pa.array([-1], pa.int64())}
    for _ in range(3):
        del memory.parts[:]
        found = mesh.rows(Image(tables), None, restrict, columns)
        whole = pa.concat_tables(tables.values())
        assert bag(found) == bag(whole.filter(pc.is_in(whole.column("k"), value_set=restrict["k"])))
        assert found.column_names == [c.name for c in columns]
    assert mesh.counters.peak <= budget
    assert max(nbytes for _, nbytes in memory.parts) <= budget * 3 / 4
    read = {names for names, _ in memory.parts}
    assert ("k",) in read or wanting == 300
    if 0 < wanting < 10:
        assert {("v0", "v1", "v2"), ("v1", "v2", "v3")} & read, "three of them have room"
    assert wanting or read == {("k",)}


@pytest.mark.parametrize("text", [False, True])
def test_a_window_that_is_not_full_leaves_its_room_to_the_pages(text: bool) -> None:
    """Few keys are met by many pages at a time, many by few; the budget is kept. Not where pages have text, which may be larger in the next
    one than in the last."""
    memory = Memory({Page("f", g): make(random.Random(g), 200) for g in range(30)})
    image, together, budget = Image(memory.pages), [], 40_000
    columns = COLUMNS if text else [c for c in COLUMNS if c.type != "string"]
    assert len(COLUMNS) - 1 <= len(columns)
    for keys in (1, 20_000):
        mesh = TableMesh(memory, budget)
        for _ in range(3):
            before = mesh.counters.pages, mesh.counters.reads
            mesh.rows(image, None, {"k": pa.array(range(0, 100 * keys, 100))}, columns)
        together.append((mesh.counters.pages - before[0]) / (mesh.counters.reads - before[1]))
        assert mesh.counters.peak <= budget
    assert (together[0] > 1.4 * together[1]) is not text, together


def test_asking_takes_little_beside_the_rows() -> None:
    """However many are decoded at a time."""
    keys = HashedKeys(pa.int64())
    keys.add(Keys.of(pa.array(range(0, 10**9, 10**5))))
    column = pa.array(np.random.default_rng(1).integers(0, 10**9, 10**6))
    tracemalloc.start()
    try:
        mask = keys.probe(column)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(column), "a byte for each answer, twice"
    assert np.array_equal(mask, np.asarray(column) % 10**5 == 0)


def _pages(shape: str) -> tuple[list[pa.Table], pa.Array, int]:
    """Files with a column `k`, the keys that are wanted, and rows of a page."""
    chance, count = random.Random(7), 20_000
    numbers = pa.array(range(count), pa.int64())
    match shape:
        case "text keys":
            keys = [f"{n:036d}" for n in range(count)]
            return [pa.table({"k": keys, "v": numbers})], pa.array(chance.sample(keys, 10_000)), 500
        case "uneven keys":
            keys = [str(n) * chance.choice([1, 1, 1, 60]) for n in range(count)]
            return [pa.table({"k": keys, "v": numbers})], pa.array(keys[::3]), 500
        case "decimal keys":
            keys = pa.array([Decimal(n) for n in range(count)], pa.decimal128(38, 0))
            return [pa.table({"k": keys, "v": numbers})], keys.take(pa.array(range(0, count, 2))), 500
        case "few long texts":
            texts = [["a"] * count, [chance.choice("xyz") * 480 for _ in range(count)]]
            return [pa.table({"k": numbers, "t": each}) for each in texts], numbers.slice(0, 9_000), 20_000
        case "wide rows match":
            texts = [f"{n:02850d}" if n % 8 == 0 else "" for n in range(count)]
            return [pa.table({"k": numbers, "t": texts})], pa.array(range(0, count, 8), pa.int64()), 1_000
        case "in order":
            wide = {f"c{n}": numbers for n in range(14)}
            keys = pa.array(range(0, 79 * count, 79), pa.int64())
            return [pa.table({"k": keys, **wide})], keys, 400
        case "flags":
            some, none = [True, False] * (count // 2), pa.nulls(count, pa.bool_())
            return (
                [
                    pa.table({"k": numbers, **{f"b{n}": each for n in range(40)}})
                    for each in (pa.array(some), pa.array([None, *some[1:]]), none)
                ],
                numbers,
                500,
            )
    raise AssertionError(shape)


@pytest.mark.parametrize("budget", [200_000, 1_000_000])
@pytest.mark.parametrize(
    "shape",
    ["text keys", "uneven keys", "decimal keys", "few long texts", "wide rows match", "in order", "flags"],
)
def test_the_budget_is_kept_whatever_rows_and_keys_are(tmp_path: Path, shape: str, budget: int) -> None:
    """With files as they are written: texts in dictionaries, bits for NULL, keys that take all the room that is reckoned with."""
    tables, wanted, page = _pages(shape)
    types = {"int64": "bigint", "string": "string", "bool": "boolean", "decimal128(38, 0)": "decimal(38,0)"}
    columns = [Column(f.name, types[str(f.type)]) for f in tables[0].schema]
    files = [str(tmp_path / f"{n}.parquet") for n in range(len(tables))]
    for path, table in zip(files, tables):
        pq.write_table(table, path, row_group_size=page)
    pages = Pages(None, 10)
    mesh, image = TableMesh(pages, budget), pages.image(files, columns)
    for _ in range(2):
        found = mesh.rows(image, None, {"k": wanted}, columns)
        assert found.num_rows == sum(pc.sum(pc.is_in(t["k"], value_set=wanted)).as_py() for t in tables)
    assert mesh.counters.peak <= budget


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0], ids=lambda share: f"{share:g} match")
@pytest.mark.parametrize("shape", ["wide after narrow", "late column", "one large page", "fits"])
def test_pages_of_files_stay_within_the_budget(
    tmp_path: Path, shape: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a page says of itself, and however many of its rows match."""
    budget, count = 1_000_000, 20_000 if shape == "wide after narrow" else 60_000
    keys = {"k": pa.array(range(count), pa.int64())}
    if shape == "wide after narrow":
        columns = (Column("k", "bigint"), Column("x", "string"))
        wide = [f"{n:0480d}" for n in range(count)]
        tables = [pa.table(keys), pa.table({**keys, "x": ["a"] * count}), pa.table({**keys, "x": wide})]
    elif shape == "late column":
        columns = (Column("k", "bigint"), Column("v", "bigint"), Column("late", "bigint"))
        count = 200_000
        tables = [pa.table({name: pa.array(range(count), pa.int64()) for name in ("k", "v")})]
    else:
        columns = (Column("k", "bigint"), *(Column(f"c{n}", "bigint") for n in range(11)))
        count = 6_000 if shape == "fits" else count
        tables = [pa.table({c.name: pa.array(range(count), pa.int64()) for c in columns})]
    files = [str(tmp_path / f"{n}.parquet") for n in range(len(tables))]
    for path, table in zip(files, tables):
        pq.write_table(table, path, row_group_size=count, use_dictionary=False)
    expected = pa.concat_tables(tables, promote_options="default")
    chance = random.Random(1)
    wanted = pa.array([-1, *chance.sample(range(count), int(share * count))], pa.int64())
    expected = expected.filter(pc.is_in(expected.column("k"), value_set=wanted)).sort_by("k")
    del tables

    pages = Pages(None, 10)
    mesh, image = TableMesh(pages, budget), pages.image(files, columns)
    for part in pages.read(image.pages[:1], columns[1:], 700):
        assert part.num_rows <= 700
    largest = []
    take = Staged.__init__
    monkeypatch.setattr(
        Staged, "__init__", lambda self, rows: (largest.append(rows.nbytes), take(self, rows))[1]
    )
    mesh.rows(image, None, {"k": wanted[:2]}, columns)  # learns what rows take
    found = mesh.rows(image, None, {"k": wanted}, columns)
    assert found.num_rows == expected.num_rows
    assert found.sort_by("k").column("k").equals(expected.column("k"))
    assert mesh.counters.peak <= budget
    assert max(largest, default=0) <= budget / 8 * 1.1, (
        "rows that match are taken in parts that can be spilled"
    )


@pytest.mark.parametrize("budget", [420_000, 4_200_000, 12_000_000])
def test_what_arrow_holds_beside_the_budget_is_a_row_group(tmp_path: Path, budget: int) -> None:
    """The decoder has the columns of one row group, several times what they take, however many pages are read together: what is allocated while rows
    are asked is that and the budget at most."""
    count, group = 200_000, 10_000
    numbers = np.random.default_rng(1)
    columns = [Column(name, "bigint") for name in ("k", *(f"c{n}" for n in range(14)))]
    values = {c.name: numbers.integers(0, 2**60, count) for c in columns[1:]}
    pq.write_table(pa.table({"k": np.arange(count), **values}), tmp_path / "r.parquet", row_group_size=group)
    pages, pool, held = Pages(None, 10), pa.default_memory_pool(), []
    image, mesh = pages.image([str(tmp_path / "r.parquet")], columns), TableMesh(pages, budget)
    right = pages.read

    def read(*given: Any) -> Iterator[pa.Table]:
        for part in right(*given):
            held.append(pool.bytes_allocated() - before)
            yield part

    pages.read = read  # type: ignore[method-assign]
    for step in (1_000, 3):
        wanted = pa.array(range(0, count, step), pa.int64())
        before = pool.bytes_allocated()
        assert mesh.rows(image, None, {"k": wanted}, columns).num_rows == len(wanted)
        row_group = group * 8 * len(columns)
        assert max(held) <= budget + 4 * row_group
    assert mesh.counters.peak <= budget


@pytest.mark.parametrize("pages", [300, 3_000])
def test_many_pages_count(pages: int) -> None:
    """What a batch has still to meet, and how many batches want each page, is of the budget, too."""
    tables = {
        Page("f", g): pa.table({"k": pa.array(range(5 * g, 5 * g + 5), pa.int64()), "g": pa.array([g] * 5, pa.int32()), "note": ["a"] * 5}, SCHEMA)
        for g in range(pages)
    }  # fmt: skip
    mesh, needed = TableMesh(Memory(tables), 64 * 1024), np.zeros(pages, np.bool_)
    needed[[0, 7, pages - 1]] = True
    spread = np.random.default_rng(3).integers(0, 2**60, 6_000)
    mesh.rows(Image(tables), needed, {"k": pa.array(np.r_[spread, 1, 36])}, COLUMNS)
    assert mesh.counters.peak <= mesh.memory
    assert mesh.counters.largest_window < 6_000
