"""Queries with a mesh join: what their refreshes read, and what EXPLAIN says."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CQError, Engine
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.window import Image
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.look_up_costs import LookUpCosts
from cq_engine.refresh.mesh import QueryMesh
from tests.accumulated import accumulated, rows
from tests.limits import limit

SMALL_PAGES = Limits(small_rows=-1, row_group_rows=20, snapshot_file_rows=100)
JOIN = "SELECT s.id, s.k, r.note FROM s JOIN r ON s.k = r.k"
SHAPES = {
    "inner": JOIN,
    "left": "SELECT s.id, s.k, r.note FROM s LEFT JOIN r ON s.k = r.k",
    "grouped": "SELECT r.note, count(*) AS n, sum(s.x) AS total FROM s JOIN r ON s.k = r.k GROUP BY r.note",
    "chain": "SELECT s.id, r.note, t.name FROM s JOIN r ON s.k = r.k JOIN t ON r.note = t.note",
    "between": "SELECT s.id, r.k, r.note FROM s JOIN r ON r.k BETWEEN s.x - 1 AND s.x + 2 WHERE s.id % 3 = 0",
    "below": "SELECT s.id, r.note FROM s LEFT JOIN r ON r.k < s.x - 120 AND r.k >= s.x - 125",
    "sum": "SELECT s.id, r.k FROM s JOIN r ON s.k + r.k > 640",
    "counted": "SELECT r.note, count(*) AS n FROM s JOIN r ON s.x > r.k + 140 AND s.x < 160 GROUP BY r.note",
    "absent": "SELECT s.id FROM s WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = s.k)",
}


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=SMALL_PAGES
    ) as opened:
        opened.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT, x INT)")
        opened.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
        opened.execute("CREATE TABLE t (note STRING PRIMARY KEY, name STRING)")
        opened.execute("INSERT INTO r SELECT id, concat('n', id % 7) FROM range(300)")
        opened.execute("INSERT INTO t SELECT concat('n', id), concat('name ', id) FROM range(5)")
        opened.execute("INSERT INTO s SELECT id, id * 7 % 400, id FROM range(150)")
        for table in ("r", "t", "s"):
            opened.compact(table)
        yield opened


def create(
    engine: Engine, name: str, query: str, options: str = "join = 'mesh'", mode: str = "TRANSACTIONAL"
) -> None:
    engine.execute(
        f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND START FROM SNAPSHOT WITH ({options}) AS {query}"
    )


def told(engine: Engine, statement: str) -> str:
    return "\n".join(row[0] for row in engine.execute(statement).fetchall())


def hows(engine: Engine) -> set[str]:
    """How the last refresh read its tables."""
    return {read.how for read in engine.queries.refresher.reports["q"].reads}


def change(engine: Engine, n: int) -> None:
    """One round of commits that change all tables."""
    engine.execute(
        f"INSERT INTO s SELECT id, id * 11 % 400, id FROM range({1_000 + 20 * n}, {1_015 + 20 * n})"
    )
    engine.execute(f"UPDATE r SET note = 'n{n % 5}' WHERE k % 50 = {n}")
    with engine.transaction() as tx:
        tx.execute(f"DELETE FROM r WHERE k = {7 * n}")
        tx.execute(f"DELETE FROM s WHERE id = {3 * n}")
        tx.execute(f"INSERT INTO r VALUES ({300 + n}, 'n1')")
    engine.execute(f"UPDATE t SET name = 'other {n}' WHERE note = 'n{n % 5}'")


_SHORT = {
    ("left", "COMPRESSED"), ("chain", "TRANSACTIONAL"), ("counted", "COMPRESSED"), ("absent", "TRANSACTIONAL"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        pytest.param(shape, mode, marks=() if (shape, mode) in _SHORT else pytest.mark.long)
        for shape in SHAPES
        for mode in ("TRANSACTIONAL", "COMPRESSED")
    ],
)
def test_deltas_are_those_of_the_result(engine: Engine, shape: str, mode: str) -> None:
    create(engine, "q", SHAPES[shape], "join = 'mesh', memory = '64 KB'", mode)
    for n in range(4):
        change(engine, n)
        if n != 1:
            engine.refresh("q")
            assert "mesh" in hows(engine)
            assert accumulated(engine, "q") == rows(engine, SHAPES[shape])
        if n == 2:
            engine.compact("r")
            engine.compact("s")


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


def test_several_tables_share_the_budget(engine: Engine) -> None:
    memory = 128 * 1024
    create(engine, "q", SHAPES["chain"], "join = 'mesh', memory = '128 KB', order = 'arrival'")
    for n in range(2):
        change(engine, n)
        engine.refresh("q")
    assert accumulated(engine, "q") == rows(engine, SHAPES["chain"])
    meshes = [mesh for _, mesh in engine.queries.refresher.meshes.kept["q"]._tables.values()]
    assert len(meshes) >= 2
    assert {mesh.memory for mesh in meshes} == {memory // len(meshes)}
    assert all(0 < mesh.counters.peak <= mesh.memory for mesh in meshes if mesh.counters.reads)


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


def _joins(engine: Engine) -> list[str]:
    """What EXPLAIN says of the meshes."""
    return [line for line in told(engine, "EXPLAIN CONTINUOUS QUERY q").splitlines() if "mesh of" in line]


def test_tables_that_are_not_scanned_take_nothing_of_the_budget(engine: Engine) -> None:
    """Whatever EXPLAIN has asked, and as often as it does."""
    create(engine, "q", JOIN, "join = 'mesh', memory = '256 KB'")
    first = _joins(engine)
    assert _joins(engine) == first
    assert engine.queries.refresher.meshes.kept["q"]._tables == {}
    change(engine, 1)
    engine.execute("DELETE FROM r WHERE k = 299")
    engine.refresh("q")
    kept = engine.queries.refresher.meshes.kept["q"]._tables
    before = {number: (mesh.memory, mesh.key_bytes) for number, (_, mesh) in kept.items()}
    assert sum(memory for memory, _ in before.values()) <= 256 * 1024
    _joins(engine)
    assert {number: (mesh.memory, mesh.key_bytes) for number, (_, mesh) in kept.items()} == before


@pytest.mark.parametrize(
    "condition", ["r.k = s.k + 1", "concat(r.note, 'x') = concat('n', s.x % 9, 'x')", "r.k % 50 <=> s.k"]
)
@pytest.mark.parametrize("join", ["mesh", "auto"])
def test_equalities_of_expressions(engine: Engine, condition: str, join: str) -> None:
    text = f"SELECT s.id, r.k, r.note FROM s JOIN r ON {condition} AND s.id % 2 = 0"
    create(engine, "q", text, f"join = '{join}', memory = '64 KB'")
    for n in range(2):
        change(engine, n)
        engine.refresh("q")
    assert accumulated(engine, "q") == rows(engine, text)


def test_explain_says_which_and_why(engine: Engine) -> None:
    create(engine, "q", JOIN, "join = 'mesh', memory = '1 MB'")
    change(engine, 1)
    text = told(engine, "EXPLAIN CONTINUOUS QUERY q")
    found = re.search(
        r"r: mesh, WITH \(join = 'mesh'\) asks for it; mesh of (\d+) pages, (\d+) at a time", text
    )
    assert found, text
    assert int(found[1]) == 15
    assert re.search(r"predicted \d+ keys/s, cycle \d+\.\d+ s \(factors not measured yet\)", text)
    text = told(engine, "EXPLAIN ANALYZE CONTINUOUS QUERY q")
    assert re.search(r"r: \d+ keys in \d+ batches of the window, \d+ keys/s \(predicted \d+\)", text), text
    assert re.search(r"pages in \d+ reads, .* memory at most", text)
    document = json.loads(told(engine, "EXPLAIN (FORMAT JSON) CONTINUOUS QUERY q"))
    assert any("factors measured" in line for line in document["joins"]), document


def test_without_the_option_nothing_is_said_of_it(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {JOIN}")
    text = told(engine, "EXPLAIN CONTINUOUS QUERY q")
    assert "mesh" not in text
    change(engine, 1)
    engine.refresh("q")
    assert engine.queries.refresher.meshes.kept == {}


def test_auto_takes_what_costs_less(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what look-ups and scans have cost so far, where columns have copies and where not."""
    create(engine, "q", JOIN, "join = 'auto'")
    change(engine, 0)
    engine.refresh("q")
    mesh = engine.queries.refresher.meshes.kept["q"]
    table = engine.catalog.state.tables["r"].storage
    for n, (copied, cost, how) in enumerate(
        [
            (1.0, LookUpCosts(key=1e-9), "look-up"),
            (1.0, LookUpCosts(key=10.0), "mesh"),
            (0.0, LookUpCosts(page=1e-9), "look-up"),
            (0.0, LookUpCosts(page=10.0), "mesh"),
        ]
    ):
        monkeypatch.setattr(mesh, "_copied", lambda *_, copied=copied: copied)
        mesh._costs[table.id] = cost
        change(engine, n + 1)
        engine.refresh("q")
        reads = engine.queries.refresher.reports["q"].reads
        assert {r.how for r in reads if r.what == "r" and r.how in ("mesh", "look-up")} == {how}
        assert accumulated(engine, "q") == rows(engine, JOIN)
    assert "by look-ups" in told(engine, "EXPLAIN CONTINUOUS QUERY q")


@pytest.mark.parametrize(("copied", "counts"), [(1.0, 0), (0.0, 1)])
def test_auto_counts_pages_at_most_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, copied: float, counts: int
) -> None:
    """Not at all where look-ups in copies are cheaper than a page of each file; once to learn what a page costs."""
    create(engine, "q", JOIN, "join = 'auto'")
    change(engine, 0)
    engine.refresh("q")
    mesh, counted, right = engine.queries.refresher.meshes.kept["q"], [], Pages.needed
    for name in ("r", "s"):
        mesh._costs[engine.catalog.state.tables[name].storage.id] = LookUpCosts(1e-9, 1e-9, 1e-9)

    def needed(self: Pages, image: Image, *asked: Any) -> Any:
        counted.append(image)
        return right(self, image, *asked)

    monkeypatch.setattr(Pages, "needed", needed)
    monkeypatch.setattr(mesh, "_copied", lambda *_: copied)
    change(engine, 1)
    engine.refresh("q")
    assert len(counted) == counts * len(set(counted))
    assert bool(counted) == bool(counts)
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
    assert read["alone"] == 6 * 15
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


def test_a_scan_ends_with_the_engine(warehouse: Path, spark: SparkSession) -> None:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=SMALL_PAGES) as opened:
        opened.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT)")
        opened.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
        opened.execute("INSERT INTO r SELECT id, 'n' FROM range(100)")
        opened.compact("r")
        opened.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND WITH (join = 'mesh') AS {JOIN}")
        opened.execute("INSERT INTO s VALUES (1, 1)")
        opened.refresh("q")
        meshes = opened.queries.refresher.meshes.kept["q"]._tables
    for _, mesh in meshes.values():
        with pytest.raises(CQError, match="was ended"):
            mesh.rows(Image([]), None, {"k": pa.array([1])}, (Column("k", "bigint"),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("join = 'hash'", "option join = hash is unknown"),
        ("join = 'mesh', memory = 'much'", "memory = 'much' is no size"),
        ("join = 'mesh', memory = '1 KB'", "memory = '1 KB' is too little for a mesh join"),
        ("join = 'mesh', order = 'any'", "option order = any is unknown"),
        ("memory = '1 MB'", "memory is an option of a mesh join, and q has none"),
        ("order = 'arrival'", "order is an option of a mesh join, and q has none"),
        ("join = 'mesh', refresh = 'full'", "join = 'mesh' is for queries that look rows up, and q is FULL"),
        ("join = 'mesh', form = 'recompute'", "join = 'mesh' and form = recompute contradict each other"),
    ],
)
def test_options_that_make_no_sense(engine: Engine, options: str, message: str) -> None:
    with pytest.raises(AnalysisError, match=re.escape(message)):
        create(engine, "q", JOIN, options, "COMPRESSED")


def test_options_can_be_changed(engine: Engine) -> None:
    create(engine, "q", JOIN, "join = 'mesh'")
    change(engine, 1)
    engine.refresh("q")
    before = engine.queries.refresher.meshes.kept["q"]
    engine.execute("ALTER CONTINUOUS QUERY q SET WITH (memory = '128 KB')")
    change(engine, 2)
    engine.refresh("q")
    assert engine.queries.refresher.meshes.kept["q"] is not before
    engine.execute("ALTER CONTINUOUS QUERY q SET WITH (join = 'look_up')")
    change(engine, 3)
    engine.refresh("q")
    assert {read.how for read in engine.queries.refresher.reports["q"].reads} & {"mesh", "look-up"} == {
        "look-up"
    }
    assert accumulated(engine, "q") == rows(engine, JOIN)
