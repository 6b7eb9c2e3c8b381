"""Ctrl-C anywhere: nothing twice, nothing lost, and the process goes on with a memory that is the database's.

`CQ_INTERRUPTS=20000` tries as many interrupts, at other places with another `CQ_INTERRUPTS_SEED`.
"""

from __future__ import annotations

import linecache
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event

from cq_engine.catalog import persist
from cq_engine.catalog.model import (
    Capture,
    CaptureStatus,
    Cursor,
    DeclaredSource,
    QueryStatus,
    RefreshRecord,
)
from cq_engine.catalog.sources import put_capture, put_source
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.view import View
from cq_engine.core import faults, interrupts
from cq_engine.core.errors import ConflictError, StorageError
from cq_engine.core.limits import Limits
from cq_engine.grammar.clauses import CaptureMethod, OnDemand
from tests.catalog.work import Work, check_memory

Open = Callable[..., Catalog]
MOST = int(os.environ.get("CQ_INTERRUPTS", "300"))
SEED = int(os.environ.get("CQ_INTERRUPTS_SEED", "1"))
POINTS = ("catalog.before_commit", "catalog.after_commit")


class Interrupter:
    """Interrupts the main thread at the n-th line of the catalog's code that it runs.

    With `held`, by a signal, as Ctrl-C does; else by an exception at that very line, where nothing holds it back. Lines
    with `with` or `try` are left out: an exception there could skip what they end, which none of Python's own does.
    """

    def __init__(self, held: bool) -> None:
        self.held = held
        self.lines = 0
        self._left = -1

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        self.lines, self._left = 0, number
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if event == "call" and "/cq_engine/catalog/" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code.co_filename
        if event != "line":
            return self._line
        if linecache.getline(code, frame.f_lineno).lstrip().startswith(("with ", "try:")):
            return self._line
        self.lines += 1
        if self.lines == self._left:
            if not self.held:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)
        return self._line


@pytest.mark.parametrize("held", [True, False], ids=["signal", "exception"])
def test_random_interrupts_of_random_work(
    catalog: Catalog, open_catalog: Open, sample: Any, held: bool
) -> None:
    chance = random.Random(f"{SEED} {held}")
    interrupter = Interrupter(held)
    with catalog.write() as unit:
        unit.set_status("big", QueryStatus(0))
    work = Work(catalog, sample, chance)
    interrupted = steps = 0
    sqlite = catalog._database.is_sqlite
    while interrupted < (MOST // 2 if sqlite else MOST // 6):
        steps += 1
        try:
            with interrupter.at(chance.randrange(1, chance.choice([60, 400, 1500]))):
                work.step()
        except KeyboardInterrupt:
            interrupted += 1
        work.look()
        check_memory(work.catalog)
        if steps % 10 == 0:
            work.check(work.catalog)
        if steps % 50 == 0:
            work.catalog.close()
            work.catalog = open_catalog()
            work.check_files(work.catalog)
    assert steps < 50 * interrupted
    work.check(work.catalog)
    work.catalog.close()
    again = open_catalog()
    work.check(again)
    work.check_files(again)


@pytest.mark.parametrize("held", [True, False], ids=["signal", "exception"])
def test_a_commit_interrupted_at_its_every_line(
    catalog: Catalog, open_catalog: Open, sample: Any, held: bool
) -> None:
    interrupter = Interrupter(held)
    with interrupter.at(-1):
        sample.commit(catalog, [0])
    lines = interrupter.lines
    assert lines > 100, "the lines of a commit are counted"
    stride = max(1, 4 * lines // MOST)
    keys = [0]
    for number in range(1, lines + 1, stride):
        with suppress(KeyboardInterrupt), interrupter.at(number):
            sample.commit(catalog, [number])
        check_memory(catalog)
        if catalog.newest_version == len(keys):  # nothing was done: it is done again
            sample.commit(catalog, [number])
        keys.append(number)
        assert catalog.newest_version == len(keys)
    catalog.close()
    sets = open_catalog().changes(sample.orders.id, 0, len(keys))
    again = open_catalog(read_only=True)
    assert [row["k"] for each in sets for row in again.inline(each).to_pylist()] == keys


@pytest.mark.parametrize("point", POINTS)
def test_a_point_around_commit(
    catalog: Catalog, open_catalog: Open, sample: Any, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C there, past everything that holds it back; the same write, made again blindly, is refused or new."""

    def stop(name: str, *_: object) -> None:
        if name == point:
            raise KeyboardInterrupt

    def refresh() -> None:
        with catalog.write() as unit:
            unit.add_changes(sample.log, 1, 1, sample.deltas(1, [1]))
            unit.set_status("big", QueryStatus(1))
            unit.set_cursor(Cursor("big", "sink", 1), after=Cursor("big", "sink", 0))
            unit.add_refresh(RefreshRecord("big", 0, 1, 1, 0, 0, "", 0.0, sample.when(1)))

    with catalog.write() as unit:
        unit.set_status("big", QueryStatus(0))
    sample.commit(catalog, [1])
    durable = point == "catalog.after_commit"
    with monkeypatch.context() as patch:
        patch.setattr(faults, "point", stop)
        with pytest.raises(KeyboardInterrupt):
            refresh()
    assert catalog.status("big").position == int(durable)
    if durable:
        with pytest.raises(ConflictError, match="the position of big is not what this process knew"):
            refresh()
    else:
        refresh()
    check_memory(catalog)
    sample.commit(catalog, [2])
    catalog.close()
    again = open_catalog()
    assert again.newest_version == 2
    assert [c.rows for c in again.changes(sample.log.id, 0, 9)] == [1]
    assert len(again.refreshes("big")) == 1


def test_a_stale_view_writes_nothing(catalog: Catalog, sample: Any) -> None:
    """Whoever writes from what the database does not hold any more is refused, and knows the truth from then on."""
    with catalog._reading() as connection:
        old = persist.load(connection)
    sample.commit(catalog, [1])
    catalog._view = old
    with pytest.raises(ConflictError, match="the catalog is not what this process knew"):
        sample.commit(catalog, [2])
    assert catalog.newest_version == 1
    sample.commit(catalog, [2])
    check_memory(catalog)


STALE: dict[str, Callable[[Any, Any], None]] = {
    "the newest commit version": lambda unit, sample: unit.add_commit(1, sample.when(1)),
    "what is defined": lambda unit, sample: unit.set_state(replace(sample.state, tables={}, queries={})),
    "the position of big": lambda unit, _: unit.set_status("big", QueryStatus(1)),
    "the status of capture c": lambda unit, _: unit.set_capture("C", CaptureStatus()),
    "the cursor of sink": lambda unit, _: unit.set_cursor(Cursor("big", "sink", 1)),
}


@pytest.mark.parametrize("what", STALE)
def test_every_fact_is_compared_in_the_database(
    catalog: Catalog, sample: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the counter of all writes: what one fact rests on stands in the database as the writer knows it."""
    with catalog.write() as unit:
        unit.set_status("big", QueryStatus(0))
        unit.set_cursor(Cursor("big", "sink", 0))
        captured = put_source(catalog.state, DeclaredSource("s", "csv"))
        capture = Capture("C", "s", "orders", CaptureMethod("COPY"), OnDemand())
        unit.set_state(put_capture(captured, capture))
    with catalog._reading() as connection:
        old = persist.load(connection)
    with catalog.write() as unit:
        STALE[what](unit, sample)
    old.generation = catalog.view.generation
    catalog._view = old
    with pytest.raises(ConflictError, match=what), catalog.write() as unit:
        STALE[what](unit, sample)
    check_memory(catalog)


def test_memory_that_cannot_be_read_again_is_not_trusted(
    catalog: Catalog, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(View, "apply", fail)
        patch.setattr(Catalog, "_catch_up", fail)
        sample.commit(catalog, [1])  # it is durable, and says so
        with pytest.raises(StorageError, match="away"):
            assert catalog.newest_version
    assert catalog.newest_version == 1
    sample.commit(catalog, [2])
    check_memory(catalog)


class TestDeferred:
    def test_ctrl_c_comes_at_the_end(self) -> None:
        done = []

        def work() -> None:
            with interrupts.deferred():
                with interrupts.deferred():
                    signal.raise_signal(signal.SIGINT)
                    done.append(1)
                done.append(2)
            done.append(3)

        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == [1, 2]
        assert signal.getsignal(signal.SIGINT) is before

    def test_what_lasts_can_be_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
        done = []

        def work() -> None:
            with interrupts.deferred():
                signal.raise_signal(signal.SIGINT)
                done.append(1)
                signal.raise_signal(signal.SIGINT)
                done.append(2)

        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == [1]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_statement_that_was_interrupted_does_not_keep_the_write_lock(
    open_catalog: Open, catalog: Catalog, number: int
) -> None:
    """Nor does who keeps the traceback, and with it the cursor."""
    seen = 0

    def interrupt(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise KeyboardInterrupt

    other = open_catalog(duties=False, limits=Limits(lock_seconds=1))
    engine = catalog._database.engine
    event.listen(engine, "after_cursor_execute", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept, catalog.write() as unit:
        unit.set_state(catalog.state)
    event.remove(engine, "after_cursor_execute", interrupt)
    with other.write(by_any=True) as unit:
        unit.set_state(other.state)
    assert kept.tb
    with catalog.write() as unit:
        unit.set_state(catalog.state)
