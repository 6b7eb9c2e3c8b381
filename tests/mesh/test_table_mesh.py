"""One table's mesh: the rows that it gives, what it holds meanwhile, and who drives the scan."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.mesh import matching, staged
from cq_engine.mesh.hashed_keys import HashedKeys
from cq_engine.mesh.packed_keys import Keys
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.staged import Stage, Staged, gather, spill
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image, Page

COLUMNS = (Column("k", "bigint"), Column("g", "int"), Column("note", "string"))
DOMAIN = (*range(15), *range(-(2**63), -(2**63) + 90, 30), 2**40, 2**50, *range(20, 25))
"""Keys that are dense, far apart, and few of those that are."""
SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.int32()), ("note", pa.string())])


def make(chance: random.Random, rows: int) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([chance.choice([None, *DOMAIN[:20]]) for _ in range(rows)], pa.int64()),
            "g": pa.array([chance.randint(0, 4) for _ in range(rows)], pa.int32()),
            "note": pa.array([chance.choice([None, "a", "b" * 9]) for _ in range(rows)]),
        },
        SCHEMA,
    )


class Memory:
    """Pages in memory, and which of them were read."""

    def __init__(self, pages: dict[Page, pa.Table]) -> None:
        self.pages = pages
        self.log: list[Page] = []
        self.parts: list[tuple[tuple[str, ...], int]] = []
        """Of which columns what was decoded, and its bytes."""
        self.closed = 0

    def rows(self, page: Page, columns: Sequence[Column]) -> int:
        return int(self.pages[page].num_rows)

    def row_bytes(self, page: Page, columns: Sequence[Column]) -> float:
        return 20.0

    def read(self, pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        self.log += pages
        whole = pa.concat_tables([self.pages[page] for page in pages]).select([c.name for c in columns])
        for start in range(0, whole.num_rows, rows):  # across the pages, as Parquet's reader does
            part = whole.slice(start, rows)
            self.parts.append((tuple(c.name for c in columns), part.nbytes))
            yield part

    def close(self) -> None:
        self.closed += 1


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def chosen(rows: Sequence[pa.Table], restrict: dict[str, pa.Array]) -> Counter[tuple[Any, ...]]:
    whole = pa.concat_tables([*rows, SCHEMA.empty_table()])
    for name, values in restrict.items():
        whole = whole.filter(pc.is_in(whole.column(name), value_set=values))
    return bag(whole)


def restriction(chance: random.Random) -> dict[str, pa.Array]:
    found = {"k": pa.array(chance.sample([None, *DOMAIN], chance.randint(1, 12)), pa.int64())}
    if chance.random() < 0.3:
        found["g"] = pa.array(chance.sample(range(5), 2), pa.int32())
    if chance.random() < 0.2:
        found = {"note": pa.array(["a", None])}
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_the_rows_are_those_with_wanted_values(seed: int) -> None:
    """Whatever the budget, the sizes of pages, the keys, and the pages that are known to have none."""
    chance = random.Random(seed)
    memory = Memory(
        {
            Page(f"f{n}", g): make(chance, chance.randint(1, 12))
            for n in range(3)
            for g in range(chance.randint(1, 4))
        }
    )
    image = Image(memory.pages)
    mesh = TableMesh(memory, chance.choice([64, 300, 2_000, 100_000]))
    mesh._tuner.matching = chance.choice([0.0, 1.0])
    for _ in range(4):
        restrict = restriction(chance)
        needed = None
        if chance.random() < 0.5:  # as the statistics of row groups say, or more
            needed = np.array(
                [bool(chosen([memory.pages[p]], restrict)) or chance.random() < 0.3 for p in image.pages],
                np.bool_,
            )
        columns = tuple(c for c in COLUMNS if c.name in restrict or chance.random() < 0.7)
        found = mesh.rows(image, needed, restrict, columns)
        whole = chosen(list(memory.pages.values()), restrict)
        kept = [n for n, c in enumerate(COLUMNS) if c in columns]
        wanted = Counter({})
        for row, count in whole.items():
            wanted[tuple(row[n] for n in kept)] += count
        assert bag(found) == wanted
    assert mesh.nbytes == 0, "nothing is kept for nobody"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_many_threads_share_the_scan(seed: int) -> None:
    """Each gets its own rows, of its own image, and a page is read once for all who wait for it."""
    chance = random.Random(seed)
    memory = Memory({Page(f"f{n}", g): make(chance, 8) for n in range(4) for g in range(3)})
    images = [Image(p for p in memory.pages if p.file != gone) for gone in ("f0", "f3", "none")]
    mesh = TableMesh(memory, 20_000)
    asked = [(chance.choice(images), restriction(chance)) for _ in range(12)]
    start = threading.Barrier(6)

    def ask(part: list[tuple[Image, dict[str, pa.Array]]]) -> list[pa.Table]:
        start.wait()
        return [mesh.rows(image, None, restrict, COLUMNS) for image, restrict in part]

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(ask, asked[n::6]) for n in range(6)]
        for n, future in enumerate(done):
            for (image, restrict), found in zip(asked[n::6], future.result(timeout=60)):
                assert bag(found) == chosen([memory.pages[p] for p in image.pages], restrict)
    assert mesh.nbytes == 0
    assert memory.closed >= 1
    alone = sum(len(image) for image, _ in asked)
    assert mesh.counters.pages <= alone


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


def test_the_scan_goes_on_where_it_stood() -> None:
    chance = random.Random(1)
    memory = Memory({Page("f", g): make(chance, 5) for g in range(5)})
    image, mesh = Image(memory.pages), TableMesh(memory, 10**6)
    needed = np.array([False, False, True, False, False])
    mesh.rows(image, needed, {"k": pa.array([1])}, COLUMNS)
    mesh.rows(image, None, {"k": pa.array([2])}, COLUMNS)
    assert [page.group for page in memory.log] == [2, 3, 4, 0, 1, 2]


def test_nothing_is_read_for_nobody() -> None:
    memory = Memory({Page("f", 0): make(random.Random(1), 5)})
    image, mesh = Image(memory.pages), TableMesh(memory, 10**6)
    assert mesh.rows(image, np.array([False]), {"k": pa.array([1])}, COLUMNS).num_rows == 0
    assert mesh.rows(image, None, {"k": pa.array([], pa.int64())}, COLUMNS).num_rows == 0
    assert mesh.rows(Image([]), None, {"k": pa.array([1])}, COLUMNS).num_rows == 0
    assert memory.log == []


def test_only_keys_are_decoded_where_few_pages_match() -> None:
    tables = {Page("f", g): make(random.Random(g), 10) for g in range(40)}
    tables[Page("f", 33)] = pa.table({"k": [777], "g": pa.array([1], pa.int32()), "note": ["x"]}, SCHEMA)
    mesh = TableMesh(Memory(tables), 10**6)
    for _ in range(3):
        found = mesh.rows(Image(tables), None, {"k": pa.array([777])}, COLUMNS)
        assert found.to_pylist() == [{"k": 777, "g": 1, "note": "x"}]
    assert mesh.counters.decoded_keys_only > 0


@pytest.mark.parametrize("error", [OSError("gone"), pa.ArrowInvalid("broken"), KeyboardInterrupt()])
def test_a_read_that_fails_leaves_nothing_behind(error: BaseException) -> None:
    """Who drives the scan gets the error; others, and the next, go on."""
    chance = random.Random(2)
    memory = Memory({Page("f", g): make(chance, 5) for g in range(4)})
    image, mesh = Image(memory.pages), TableMesh(memory, 10**6)
    right, failed = memory.read, []

    def read(pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        if pages[0].group == 2 and not failed:
            failed.append(True)
            raise error
        return right(pages, columns, rows)

    memory.read = read  # type: ignore[method-assign]
    mesh._chunk = lambda *_: 1  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        mesh.rows(image, None, {"k": pa.array([1, 2])}, COLUMNS)
    assert mesh.nbytes == 0
    found = mesh.rows(image, None, {"k": pa.array([1, 2])}, COLUMNS)
    assert bag(found) == chosen(list(memory.pages.values()), {"k": pa.array([1, 2])})


class Crash(BaseException):
    """What a test lets happen at a fault point."""


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


def test_given_up_at_every_chunk_border(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    memory = Memory({Page("f", g): make(chance, 5) for g in range(6)})
    image, restrict = Image(memory.pages), {"k": pa.array([1, 2, 3])}
    mesh = TableMesh(memory, 10**6)
    mesh._chunk = lambda *_: 1  # type: ignore[method-assign]
    for border in range(1, 7):
        hits = Counter[str]()

        def crash(
            name: str, file: Path | None = None, border: int = border, hits: Counter[str] = hits
        ) -> None:
            hits[name] += 1
            if hits["mesh.chunk"] == border:
                raise Crash

        monkeypatch.setattr(faults, "point", crash)
        with pytest.raises(Crash):
            mesh.rows(image, None, restrict, COLUMNS)
        monkeypatch.undo()
        assert mesh.nbytes == 0
        found = mesh.rows(image, None, restrict, COLUMNS)
        assert bag(found) == chosen(list(memory.pages.values()), restrict)


def test_what_is_measured_goes_into_the_model() -> None:
    """The factors follow the machine, and so the tuning."""
    memory = Memory({Page("f", g): make(random.Random(g), 200) for g in range(20)})
    image, mesh = Image(memory.pages), TableMesh(memory, 10**5)
    before = mesh.factors
    for _ in range(5):
        mesh.rows(image, None, {"k": pa.array([1])}, COLUMNS)
    assert mesh.factors.page_byte != before.page_byte
    assert mesh.counters.pages == 100
    assert mesh.counters.changes == 5
    seconds = mesh.counters.seconds / 5
    assert seconds / 5 < mesh.tuning(image, COLUMNS).cycle < 5 * seconds


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
    import pyarrow.parquet as pq

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


def test_a_read_that_fails_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that it had found and put into some."""
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    memory = Memory({Page("f", g): make(random.Random(g), 300) for g in range(3)})
    image, mesh, right, spilled = Image(memory.pages), TableMesh(memory, 4_000), memory.read, []

    def read(pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        yield from right(pages, columns, rows)
        spilled.append(len(list(tmp_path.iterdir())))
        raise OSError("gone")

    memory.read = read  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        mesh.rows(image, None, {"k": pa.array(range(1_000))}, COLUMNS)
    assert max(spilled) > 0
    assert list(tmp_path.iterdir()) == []
    assert mesh.nbytes == 0


def test_a_spill_that_fails_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a part of one nor those of rows that nobody has met then."""
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    memory = Memory({Page("f", g): make(random.Random(g), 60) for g in range(40)})
    image, right, written = Image(memory.pages), pa.ipc.new_file, []

    def new_file(*given: Any) -> Any:
        written.append(given)
        if len(written) == fails_at:
            raise OSError("no space left on device")
        return right(*given)

    monkeypatch.setattr(pa.ipc, "new_file", new_file)
    fails_at = 0
    for n in range(1, 12):
        mesh, fails_at = TableMesh(memory, 3_000), len(written) + n
        with pytest.raises(OSError, match="no space left"):
            mesh.rows(image, None, {"k": pa.array(range(1_000))}, COLUMNS)
        assert list(tmp_path.iterdir()) == []
        assert mesh.nbytes == 0


def test_spilled_rows_are_shared_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    tables = [make(random.Random(n), 9) for n in range(3)]
    parts = [Staged(rows) for rows in (tables[0], tables[1], tables[2].drop_columns(["note"]))]
    for part in (*parts, parts[0]):
        part.hold()
    taken = sum(part.nbytes for part in parts)
    assert spill(parts) == taken
    assert spill(parts) == 0
    assert [part.nbytes for part in parts] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 2, "a file for rows of the same columns"
    assert [part.rows().equals(rows) for part, rows in zip(parts[:2], tables)] == [True, True]
    parts[0].release()
    parts[1].release()
    assert parts[0].rows().equals(tables[0]), "somebody else has met them"
    for part in (parts[0], parts[2]):
        part.release()
    assert list(tmp_path.iterdir()) == []


def test_spilled_rows_are_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    tables = [make(random.Random(n), 9) for n in range(12)]
    parts = [Staged(rows).hold() for rows in tables]
    for start in (0, 4):
        spill(parts[start : start + 4])
    opened, right = [], pa.memory_map
    monkeypatch.setattr(pa, "memory_map", lambda path: opened.append(path) or right(path))
    found = gather(parts)
    assert [rows.equals(wanted) for rows, wanted in zip(found, tables)] == [True] * 12
    assert len(opened) == len(set(opened)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_stage_knows_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """As the sum over its parts would say, whatever was released, added twice, or put into a file meanwhile."""
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    chance, stage = random.Random(seed), Stage()
    parts: list[Staged] = []
    for _ in range(200):
        match chance.choice(["add", "add", "again", "release", "spill one", "spill"]):
            case "add":
                parts.append(Staged(make(chance, chance.randint(0, 9))).hold())
                stage.add(parts[-1])
            case "again" if parts:
                stage.add(chance.choice(parts))
            case "release" if parts:
                parts.pop(chance.randrange(len(parts))).release()
            case "spill one" if parts:
                spill([chance.choice(parts)])
            case "spill" if chance.random() < 0.2:
                held = stage.nbytes
                assert stage.spill() == held
        assert stage.nbytes == sum(part.nbytes for part in parts)


@pytest.mark.parametrize("count", [1, 7, 1_000])
def test_pages_of_files(tmp_path: Path, count: int) -> None:
    """Row groups of Parquet, with a column that came later than one of the files."""
    import pyarrow.parquet as pq

    chance = random.Random(count)
    rows = make(chance, count)
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=10)
    pq.write_table(rows.drop_columns(["note"]), tmp_path / "b.parquet", row_group_size=10)
    files = [str(tmp_path / name) for name in ("b.parquet", "a.parquet")]
    pages = Pages(None, 10)
    image = pages.image(files, COLUMNS)
    assert pages.image(files[::-1], COLUMNS) is image
    assert len(image) == 2 * -(-count // 10)
    mesh = TableMesh(pages, 3_000)
    for _ in range(3):
        restrict = restriction(chance)
        needed = pages.needed(image, COLUMNS, restrict, files)
        found = mesh.rows(image, needed, restrict, COLUMNS)
        later = rows.set_column(2, "note", pa.nulls(count, pa.string()))
        assert bag(found) == chosen([rows, later], restrict)
    only = pages.read([page for page in image.pages if page.file == files[0]], COLUMNS[2:], 4)
    assert sum(part.column("note").null_count for part in only) == count
    assert matching._SKIPPED < 1
    pages.close()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0], ids=lambda share: f"{share:g} match")
@pytest.mark.parametrize("shape", ["wide after narrow", "late column", "one large page", "fits"])
def test_pages_of_files_stay_within_the_budget(
    tmp_path: Path, shape: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a page says of itself, and however many of its rows match."""
    import pyarrow.parquet as pq

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
