"""Calls that share the scan of a mesh: what one of them meets, and is counted, is not the others'."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError
from cq_engine.mesh.run import Run
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image, Page
from tests.mesh.memory import COLUMNS, Memory, bag, chosen, make
from tests.waiting import until


def page_by_page(memory: Memory, budget: int = 10**6) -> TableMesh:
    """A mesh that reads one page at a time."""
    mesh = TableMesh(memory, budget)
    mesh._chunk = lambda *_: 1  # type: ignore[method-assign]
    return mesh


def together(mesh: TableMesh, memory: Memory, *asks: Callable[[], pa.Table]) -> list[Future[pa.Table]]:
    """Runs calls of `rows` in threads; no page is read before all of them wait for the scan."""
    right = memory.read

    def read(pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        until(lambda: mesh.waiting >= len(asks) or len(memory.log) > 0)
        return right(pages, columns, rows)

    memory.read = read  # type: ignore[method-assign]
    with ThreadPoolExecutor(len(asks)) as pool:
        return [pool.submit(ask) for ask in asks]


def test_a_page_that_cannot_be_read_fails_only_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of an older version needs a file that is gone by now, and another call drives the scan for both."""
    memory = Memory({Page(f, g): make(random.Random(g), 5) for f in ("a", "b", "c") for g in range(3)})
    images = {"live": Image(p for p in memory.pages if p.file != "b")}
    images["old"] = Image(p for p in memory.pages if p.file != "c")
    right = memory.read

    def read(pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        if pages[0].file == "b":
            raise FileNotFoundError("b")
        return right(pages, columns, rows)

    def ask(name: str) -> pa.Table:
        threading.current_thread().name = name
        return mesh.rows(images[name], None, restrict, COLUMNS)

    def advance(self: TableMesh) -> None:
        if threading.current_thread().name == "live":
            drive(self)
        else:
            assert time.monotonic() < deadline, "nobody reads on"
            time.sleep(0.001)

    drive, deadline = TableMesh._advance, time.monotonic() + 20
    monkeypatch.setattr(TableMesh, "_advance", advance)
    memory.read = read  # type: ignore[method-assign]
    mesh, restrict = page_by_page(memory), {"k": pa.array([1, 2])}
    live, old = together(mesh, memory, partial(ask, "live"), partial(ask, "old"))
    assert bag(live.result()) == chosen([memory.pages[p] for p in images["live"].pages], restrict)
    with pytest.raises(FileNotFoundError):
        old.result()
    assert mesh.nbytes == 0
    assert mesh.waiting == 0


def test_who_reads_for_all_does_not_look_into_footers_of_others() -> None:
    """Not even to tune the scan: the file of a batch's first page may be gone."""
    memory = Memory({Page(f, g): make(random.Random(g), 5) for f in ("a", "b") for g in range(3)})
    images = {f: Image(p for p in memory.pages if p.file == f) for f in ("a", "b")}
    mesh, restrict, right = TableMesh(memory, 400), {"k": pa.array([1, 2])}, memory.rows
    asked: set[tuple[str, str]] = set()

    def rows(page: Page, columns: Sequence[Column]) -> int:
        if page.group == 0:  # which nobody needs
            asked.add((page.file, threading.current_thread().name))
        return right(page, columns)

    def ask(file: str) -> pa.Table:
        threading.current_thread().name = file
        return mesh.rows(images[file], np.array([False, True, True]), restrict, COLUMNS)

    memory.rows = rows  # type: ignore[method-assign]
    for each in together(mesh, memory, partial(ask, "a"), partial(ask, "b")):
        each.result()
    assert asked == {("a", "a"), ("b", "b")}


def test_a_run_counts_what_was_done_for_it() -> None:
    """And not what its neighbours in the scan have wanted."""
    memory = Memory({Page(f, g): make(random.Random(g), 5) for f in ("a", "b") for g in range(4)})
    images = {"a": Image(p for p in memory.pages if p.file == "a"), "ab": Image(memory.pages)}
    keys = {"a": pa.array([3]), "ab": pa.array([1, 2, 5])}
    mesh, runs = page_by_page(memory), {name: Run() for name in images}
    asks = [partial(mesh.rows, images[name], None, {"k": keys[name]}, COLUMNS, runs[name]) for name in images]
    found = dict(zip(images, together(mesh, memory, *asks)))
    for name, run in runs.items():
        assert run.done.changes == len(keys[name])
        assert run.done.batches == 1
        assert run.done.pages == len(images[name])
        assert run.done.matches == found[name].result().num_rows
        assert 0 < run.done.seconds <= mesh.counters.seconds
        assert 0 < run.done.peak <= mesh.counters.peak
        assert run.done.reads <= mesh.counters.reads
    assert mesh.counters.changes == 4
    assert mesh.counters.pages < sum(run.done.pages for run in runs.values()), "they have shared some"
    again = Run()
    mesh.rows(images["a"], np.array([False] * 4), {"k": pa.array([1])}, COLUMNS, again)
    assert (again.done.changes, again.done.pages, again.done.reads) == (1, 0, 0)


def test_what_is_given_up_leaves_the_scan() -> None:
    memory = Memory({Page("f", g): make(random.Random(g), 5) for g in range(6)})
    mesh, run, right, image = page_by_page(memory), Run(), memory.read, Image(memory.pages)

    def read(pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        if pages[0].group == 2:
            run.given_up.set()
        return right(pages, columns, rows)

    memory.read = read  # type: ignore[method-assign]
    with pytest.raises(CQError, match="not wanted any more"):
        mesh.rows(image, None, {"k": pa.array([1, 2])}, COLUMNS, run)
    assert [page.group for page in memory.log] == [0, 1, 2]
    assert mesh.nbytes == 0
    assert mesh.waiting == 0
