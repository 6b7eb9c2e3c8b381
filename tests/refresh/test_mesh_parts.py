"""Parts of the log that a mesh join refreshes one by one: cut, gathered ahead, delivered, divided, and interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cq_engine import Engine
from cq_engine.core import faults
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.mesh import QueryMesh
from tests.accumulated import accumulated, rows
from tests.limits import limit
from tests.refresh.meshed import JOIN, SHAPES, change, create, engine, hows

__all__ = ["engine"]


def test_an_interval_is_cut_where_its_keys_do_not_fit(engine: Engine) -> None:
    """A transactional query takes as many commits as the window holds; the others wait in the log. A compressed one has one delta."""
    create(engine, "each", JOIN, "join = 'mesh', memory = '64 KB'")
    create(engine, "whole", JOIN, "join = 'mesh', memory = '64 KB'", "COMPRESSED")
    for n in range(12):
        engine.execute(
            f"INSERT INTO s SELECT id, id % 400, 1 FROM range({1_000 * n + 1_000}, {1_000 * n + 1_200})"
        )
    done = [engine.refresh(name) for name in ("each", "whole")]
    assert done[0].inserted == done[1].inserted == 1_800
    counted = {
        name: [r for r in engine.catalog.refreshes(name) if r.inserted and r.from_version]
        for name in ("each", "whole")
    }
    assert len(counted["each"]) > 2
    assert len(counted["whole"]) == 1
    for name in ("each", "whole"):
        assert accumulated(engine, name) == rows(engine, JOIN)
    peaks = [mesh.counters.peak for _, mesh in engine.queries.refresher.meshes.kept["whole"]._tables.values()]
    assert max(peaks) <= 64 * 1024


def test_a_refresh_takes_more_commits_where_keys_take_less(engine: Engine) -> None:
    """Dense numbers do, and so the window has room for more of them; as soon as those of one refresh are known."""
    create(engine, "dense", JOIN, "join = 'mesh', memory = '64 KB'")
    engine.execute(f"INSERT INTO s VALUES (900, 5, 1), (901, {2**40}, 1)")
    engine.refresh("dense")
    mesh = engine.queries.refresher.meshes.kept["dense"]
    first = mesh.changes
    engine.execute("INSERT INTO s SELECT id, id % 400, 1 FROM range(1000, 1200)")
    engine.refresh("dense")
    assert 2 * first < mesh.changes <= 4 * (first + 1)
    assert accumulated(engine, "dense") == rows(engine, JOIN)


class Crash(BaseException):
    """What a test lets happen at a fault point."""


def crash_at(border: int, crashed: list[str] | None = None) -> Callable[..., None]:
    """What crashes at that border of chunks of a scan, once; `crashed` is told in which thread."""
    left = [border]

    def point(name: str, file: Path | None = None) -> None:
        left[0] -= name == "mesh.chunk"
        if left[0] == 0:
            left[0] = -1
            if crashed is not None:
                crashed.append(threading.current_thread().name)
            raise Crash

    return point


@pytest.mark.parametrize("mode", ["TRANSACTIONAL", "COMPRESSED"])
def test_a_crash_at_every_chunk_border_loses_and_repeats_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    create(engine, "q", SHAPES["left"], "join = 'mesh', memory = '64 KB'", mode)
    wanted = engine.describe("q").position
    for n in range(3):
        change(engine, n)
    borders = 0
    while True:
        borders += 1
        with monkeypatch.context() as patched:
            patched.setattr(faults, "point", crash_at(borders))
            try:
                engine.refresh("q")
                break
            except Crash:
                assert engine.describe("q").position >= wanted
    assert borders > 5
    assert accumulated(engine, "q") == rows(engine, SHAPES["left"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_crashes_while_later_parts_are_gathered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever thread drives the scan then."""
    monkeypatch.setattr(QueryMesh, "changes", 15)
    create(engine, "q", SHAPES["left"], "join = 'mesh', memory = '64 KB'")
    crashed: list[str] = []
    for n in range(6):
        change(engine, 2 * n)
        change(engine, 2 * n + 1)
        with monkeypatch.context() as patched:
            patched.setattr(faults, "point", crash_at(1 + 2 * n, crashed))
            with suppress(Crash):
                engine.refresh("q")
        engine.refresh("q")
        assert accumulated(engine, "q") == rows(engine, SHAPES["left"])
    assert len(crashed) > 3


def test_a_query_that_falls_behind_shows_how_far(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of the log that have met the table are its deltas up to its position, and the destination has them; the others wait in
    the log, and enter the window again."""
    engine.execute(
        "CREATE CONTINUOUS QUERY q COMPUTE TRANSACTIONAL DELTA ON DEMAND START FROM SNAPSHOT DESTINATION met"
        f" WITH (join = 'mesh', memory = '64 KB') AS {JOIN}"
    )
    monkeypatch.setattr(QueryMesh, "changes", 40)
    start = engine.describe("q").position
    for n in range(6):
        change(engine, n)
    newest, computed = engine.catalog.newest_version, []

    def crash(name: str, file: Path | None = None) -> None:
        if name == "refresh.computed":
            computed.append(name)
            if len(computed) == 3:
                raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", crash)
        with pytest.raises(Crash):
            engine.refresh("q")
    position = engine.describe("q").position
    assert start < position < newest
    met = JOIN.replace("FROM s", f"FROM s VERSION AS OF {position}").replace(
        "JOIN r", f"JOIN r VERSION AS OF {position}"
    )
    assert accumulated(engine, "q") == rows(engine, met)
    ((_, _, _, _, delivered, lag, *_),) = engine.execute("SHOW DESTINATIONS").fetchall()
    assert (delivered, lag) == (position, 0)
    engine.refresh("q")
    assert engine.describe("q").position >= newest
    assert accumulated(engine, "q") == rows(engine, JOIN)
    ((_, _, _, state, delivered, lag, *_),) = engine.execute("SHOW DESTINATIONS").fetchall()
    assert (state, delivered, lag) == ("ACTIVE", engine.describe("q").position, 0)


def test_what_is_complete_is_delivered_before_the_rest(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destination has the deltas of a part while the next ones are met."""
    engine.execute(
        "CREATE CONTINUOUS QUERY q COMPUTE TRANSACTIONAL DELTA ON DEMAND START FROM SNAPSHOT DESTINATION met"
        f" WITH (join = 'mesh', memory = '64 KB') AS {JOIN}"
    )
    monkeypatch.setattr(QueryMesh, "changes", 40)
    for n in range(6):
        change(engine, n)
    behind = []

    def look(name: str, file: Path | None = None) -> None:
        if name == "refresh.computed":
            ((_, _, _, _, delivered, *_),) = engine.execute("SHOW DESTINATIONS").fetchall()
            behind.append(engine.describe("q").position - delivered)

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", look)
        engine.refresh("q")
    assert len(behind) > 3
    assert behind[1:] == [0] * (len(behind) - 1)


@pytest.mark.parametrize("what", ["PAUSE", "DROP"])
def test_a_callback_may_end_it_between_parts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What is complete is delivered, and no more is met."""
    engine.execute(
        "CREATE CONTINUOUS QUERY q COMPUTE TRANSACTIONAL DELTA ON DEMAND START FROM NOW DESTINATION CALLBACK enough"
        f" WITH (join = 'mesh', memory = '64 KB') AS {JOIN}"
    )
    got: list[Any] = []

    def enough(batch: Any) -> None:
        if not got:
            statement = "ALTER CONTINUOUS QUERY q PAUSE" if what == "PAUSE" else "DROP CONTINUOUS QUERY q"
            engine.execute(statement)
        got.append(batch)

    engine.callback("enough")(enough)
    monkeypatch.setattr(QueryMesh, "changes", 40)
    for n in range(6):
        change(engine, n)
    done = engine.refresh("q")
    assert got[-1].commit_version <= done.to_version < engine.catalog.newest_version
    before = len(got)
    if what == "PAUSE":
        engine.execute("ALTER CONTINUOUS QUERY q RESUME")
        engine.refresh("q")
        assert len(got) > before
        assert engine.describe("q").position == engine.catalog.newest_version


def test_a_part_whose_rows_are_too_many_is_divided(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver cannot have what its keys match; a commit at least is one part, which executors refresh then."""
    create(engine, "q", JOIN, "join = 'mesh', memory = '1 MB'")
    limit(engine, driver_rows=100, least_slice_changes=10)
    for n in range(8):
        engine.execute(f"INSERT INTO s SELECT id, id % 300, 1 FROM range({1_000 + 50 * n}, {1_050 + 50 * n})")
    engine.refresh("q")
    done = [r for r in engine.catalog.refreshes("q") if r.inserted and r.from_version]
    assert len(done) > 1
    assert "scan" not in hows(engine), "nothing was scanned by executors"
    assert accumulated(engine, "q") == rows(engine, JOIN)


def test_a_part_has_no_more_changes_than_the_driver_takes(engine: Engine) -> None:
    """However many keys the window has room for: what executors refresh is not served by the scan."""
    limit(engine, refresh_changes=150, known_values=120, key_values=130)
    create(engine, "q", JOIN, "join = 'mesh', memory = '8 MB'")
    assert engine.queries.refresher.meshes.of(engine.queries.find("q")).changes == 120  # type: ignore[union-attr]
    for n in range(5):
        engine.execute(f"INSERT INTO s SELECT id, id % 300, 1 FROM range({1_000 + 80 * n}, {1_080 + 80 * n})")
    engine.refresh("q")
    assert "mesh" in hows(engine)
    assert "scan" not in hows(engine)
    assert accumulated(engine, "q") == rows(engine, JOIN)


def test_later_commits_enter_the_scan_of_earlier_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of the log that wait share the pages: fewer are read than by one part after the other, and of what is committed
    meanwhile the rows are gathered before its refresh begins."""
    read = {}
    for name, ahead in (("alone", 0), ("ahead", 3)):
        limit(engine, mesh_prefetch=ahead)
        engine.execute(
            f"CREATE CONTINUOUS QUERY {name} START FROM SNAPSHOT WITH (join = 'mesh', memory = '64 KB') AS {JOIN}"
        )
        monkeypatch.setattr(QueryMesh, "changes", 60)
        start = engine.catalog.newest_version * 1_000
        for n in range(6):
            engine.execute(
                f"INSERT INTO s SELECT id, id * 7 % 300, 1 FROM range({start + 100 * n}, {start + 100 * n + 50})"
            )
        engine.refresh(name)
        assert accumulated(engine, name) == rows(engine, JOIN)
        (mesh,) = [m for _, m in engine.queries.refresher.meshes.kept[name]._tables.values()]
        read[name] = mesh.counters.pages
        runs = [run.done for run in engine.queries.refresher.reports[name].meshes]
        assert sum(run.changes for run in runs) == mesh.counters.changes, "each counts its own keys"
        assert sum(run.batches for run in runs) == mesh.counters.batches
        assert sum(run.pages for run in runs) >= mesh.counters.pages, (
            "a page that parts share counts for each"
        )
        assert mesh.nbytes == 0
    assert read["alone"] == 6 * 16
    assert read["ahead"] < read["alone"] * 3 / 4, read


def test_rows_that_cannot_be_gathered_ahead_are_asked_for_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(engine, "q", JOIN, "join = 'mesh', memory = '64 KB'")
    monkeypatch.setattr(QueryMesh, "changes", 30)
    for n in range(4):
        change(engine, n)
    right = IntervalBinder.source_rows

    def refused(self: IntervalBinder, leaf: Any) -> Any:
        if threading.current_thread().name == "cq-mesh-prefetch":
            raise OSError("gone")
        return right(self, leaf)

    monkeypatch.setattr(IntervalBinder, "source_rows", refused)
    engine.refresh("q")
    assert accumulated(engine, "q") == rows(engine, JOIN)
