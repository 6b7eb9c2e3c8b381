"""One table's mesh: the rows that it gives, what it reads for them, and who drives the scan."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.mesh import matching
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image, Page
from tests.mesh.memory import COLUMNS, SCHEMA, Memory, bag, chosen, make, restriction


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


@pytest.mark.parametrize("count", [1, 7, 1_000])
def test_pages_of_files(tmp_path: Path, count: int) -> None:
    """Row groups of Parquet, with a column that came later than one of the files."""
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
