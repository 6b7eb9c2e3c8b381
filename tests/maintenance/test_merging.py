"""Merging changes into the snapshot: every image stays what it was, and only touched files are written."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from cq_engine.api.engine import Engine
from cq_engine.catalog.flush import flush
from cq_engine.catalog.model import DataFile
from cq_engine.core.limits import Limits
from tests.limits import limit
from tests.maintenance.histories import CREATE, History
from tests.maintenance.oracle import check_law, image

TOTALS = "SELECT g, count(*) AS n, max(s) AS m FROM t t GROUP BY g"


@pytest.fixture
def limits() -> Limits:
    """Nothing is kept in memory, and files have a few rows."""
    return Limits(small_rows=-1, snapshot_file_rows=8)


@pytest.fixture
def history(engine: Engine) -> History:
    engine.execute(CREATE)
    return History(engine, random.Random(0))


def snapshot(history: History, version: int | None = None) -> dict[str, DataFile]:
    catalog = history.engine.catalog
    at = catalog.newest_version if version is None else version
    return {file.path: file for file in catalog.layout(history.table.id, at).snapshot}


@pytest.mark.parametrize("seed", range(6))
def test_images_of_generated_histories(history: History, seed: int) -> None:
    """Inline commits, commits in files and insert-only files, flushed or not; merges at the newest or an earlier
    version; a merge of everything in between."""
    engine, rng = history.engine, random.Random(seed)
    history.rng = rng
    merged, kept = 0, 0
    for _ in range(14):
        in_files = rng.random() < 0.5
        limit(engine, inline_bytes=0 if in_files else 1_000_000)
        version = history.commit(inserts_only=rng.random() < 0.4)
        if rng.random() < 0.3:
            flush(engine.catalog)
        if rng.random() < 0.5:
            before = snapshot(history)
            newest = engine.catalog.layout(history.table.id, version).base
            at = version if rng.random() < 0.7 else rng.randint(newest, version)
            merged += engine.compactor.merge(history.table, at)
            kept += len(before.keys() & snapshot(history).keys())
            history.check()
    history.check()
    assert merged > 2
    assert kept > 0
    history.check_by_spark(rng.choice(list(history.images)))


@pytest.mark.parametrize("seed", [7, 8])
def test_images_of_merges_in_slices(history: History, seed: int) -> None:
    limit(history.engine, merge_rows=8)
    history.rng = random.Random(seed)
    for number in range(6):
        limit(history.engine, inline_bytes=0 if number % 2 else 1_000_000)
        history.commit(inserts_only=number % 3 == 1)
        if number in (2, 3, 5):
            assert history.engine.compactor.merge(history.table)
    history.check()
    assert not history.engine.compactor.merge(history.table), "nothing has changed since"


def test_only_touched_files_are_written(history: History) -> None:
    engine = history.engine
    engine.execute("INSERT INTO t SELECT id, 0, id, 'x' FROM range(64)")
    engine.compactor.merge(history.table)
    before = snapshot(history)
    assert len(before) == 8
    engine.execute("UPDATE t SET s = 'y' WHERE a IN (17, 18)")
    engine.execute("DELETE FROM t WHERE a = 20")
    engine.compactor.merge(history.table)
    after = snapshot(history)
    (gone,) = before.keys() - after.keys()
    assert before[gone].stats["g"] == (16, 23)
    (new,) = after.keys() - before.keys()
    assert after[new].rows == 7
    assert snapshot(history, 1).keys() == set(before), "the image at version 1 is where it was"
    assert engine.execute("SELECT count(*) FROM t WHERE s = 'y'").fetchall() == [(2,)]


def test_rows_that_move_leave_the_file_of_their_old_cluster(history: History) -> None:
    """The file is found by the value that the row had before."""
    engine = history.engine
    engine.execute("INSERT INTO t SELECT id, 0, id, 'x' FROM range(64)")
    engine.compactor.merge(history.table)
    engine.execute("UPDATE t SET g = 60 WHERE a = 3")
    engine.execute("UPDATE t SET g = 30 WHERE a = 3")
    engine.compactor.merge(history.table)
    found = engine.execute("SELECT a, g FROM t WHERE a < 5 ORDER BY a").fetchall()
    assert found == [(0, 0), (1, 1), (2, 2), (3, 30), (4, 4)]


def test_small_files_are_merged_with_each_other(history: History) -> None:
    """Commits that only insert touch no file, and would leave one more at every merge."""
    engine = history.engine
    limit(engine, snapshot_file_rows=64)
    for number in range(40):
        engine.execute(f"INSERT INTO t VALUES ({number}, 0, {number}, 'x')")
        engine.compactor.merge(history.table)
    assert len(snapshot(history)) <= 5
    assert engine.execute("SELECT count(*), sum(g) FROM t").fetchall() == [(40, 780)]


@pytest.mark.parametrize("limits", [Limits(small_rows=-1, snapshot_file_rows=3)])
def test_hidden_identities(engine: Engine) -> None:
    """A table without a key: equal rows are told apart."""
    engine.execute("CREATE TABLE d (x INT, f DOUBLE)")
    engine.execute("INSERT INTO d VALUES (1, 0.5), (1, 0.5), (2, double('NaN')), (3, -0.0), (NULL, NULL)")
    table = engine.catalog.state.tables["d"].storage
    expected = {}
    for text in (
        "DELETE FROM d WHERE x = 2",
        "UPDATE d SET x = 4 WHERE x IS NULL",
        "INSERT INTO d SELECT x, f FROM d",
        "UPDATE d SET f = f + 1 WHERE x = 1",
    ):
        engine.execute(text)
        version = engine.catalog.newest_version
        expected[version] = image(engine, "SELECT * FROM d d", version)
        assert engine.compactor.merge(table)
        for at, rows in expected.items():
            assert Counter(image(engine, "SELECT * FROM d d", at)) == rows
    assert sum(expected[version].values()) == 8


def test_a_query_that_lags_reads_its_old_image(history: History) -> None:
    """Merged beyond its position, and merged twice: its interval is still exactly what it has not seen."""
    engine = history.engine
    for _ in range(3):
        history.commit()
    engine.execute(f"CREATE CONTINUOUS QUERY totals ON DEMAND AS {TOTALS}")
    since = engine.catalog.newest_version
    for number in range(8):
        history.commit(inserts_only=number == 4)
        if number in (1, 4, 6):
            engine.compactor.merge(history.table)
    engine.refresh("totals")
    assert check_law(engine, "totals", TOTALS, since) > 8
    assert engine.describe("totals").position == engine.catalog.newest_version


def test_states_and_results_are_merged_at_their_position(history: History) -> None:
    """Queries above see nothing of it."""
    engine = history.engine
    limit(engine, compact_rows=3, compact_long_rows=6)
    history.commit()
    engine.execute(f"CREATE CONTINUOUS QUERY totals AS {TOTALS}")
    engine.execute("CREATE CONTINUOUS QUERY top AS SELECT g, n FROM totals WHERE n > 1")
    since = engine.catalog.newest_version
    for _ in range(6):
        history.commit()
        engine.refresh("top")
        engine.maintain()
    check_law(engine, "totals", TOTALS, since)
    check_law(engine, "top", f"SELECT g, n FROM ({TOTALS}) WHERE n > 1", since)
    query = engine.catalog.state.queries["totals"]
    assert query.relation is not None
    for table in (history.table, query.relation.storage, *(s for _, s in query.states)):
        assert engine.catalog.layout(table.id, engine.catalog.newest_version).base > since, table.name


def test_a_few_groups_of_a_large_state_are_merged(history: History) -> None:
    """Its change rows have no before-images: the rows that they replace are found by their keys."""
    engine = history.engine
    engine.execute("CREATE TABLE d (a INT PRIMARY KEY, g INT, x INT)")
    engine.execute("INSERT INTO d SELECT id, id % 100, id FROM range(300)")
    sums = "SELECT g, sum(x) AS s, count(*) AS n FROM d d GROUP BY g"
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {sums}")
    since = engine.catalog.newest_version
    ((_, state),) = engine.catalog.state.queries["sums"].states
    for n in range(1, 5):
        engine.execute(f"UPDATE d SET x = x + {n} WHERE g IN ({n}, {n + 1}, 50)")
        engine.execute(f"DELETE FROM d WHERE g = {n + 60}")
        engine.refresh("sums")
        position = engine.describe("sums").position
        assert engine.compactor.merge(state, position)
        files = engine.catalog.layout(state.id, position).snapshot
        assert sum(file.rows for file in files) == 100 - n
    check_law(engine, "sums", sums, since)


def test_what_is_due(history: History) -> None:
    """Few changes wait; more wait while merging them rewrites much; a long log does not wait."""
    engine, table = history.engine, history.table
    limit(engine, compact_rows=4, compact_long_rows=30, compact_share=2)

    def due() -> bool:
        return engine.compactor.is_due(table, engine.catalog.newest_version)

    engine.execute("INSERT INTO t SELECT id, 0, id, 'x' FROM range(200)")
    assert due()
    assert engine.maintain() == ["t"]
    assert not due()
    engine.execute("UPDATE t SET s = 'y' WHERE a = 1 OR a = 199")
    assert not due(), "not above compact_rows"
    engine.execute("UPDATE t SET s = 'z' WHERE a % 20 = 0")
    assert not due(), "24 change rows and nearly half of the files"
    engine.execute("UPDATE t SET s = 'z' WHERE a % 40 = 1")
    assert due(), "above compact_long_rows"
    engine.maintain()
    engine.execute("UPDATE t SET s = 'w' WHERE a < 3")
    assert due(), "6 change rows in one file"


def test_few_change_rows_of_many_are_looked_at(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up takes the change rows of its keys out of the log before it applies them."""
    engine = history.engine
    engine.execute("INSERT INTO t SELECT id, 0, id % 100, 'x' FROM range(1500)")
    engine.execute("UPDATE t SET s = 'y' WHERE a % 2 = 0")
    engine.execute("DELETE FROM t WHERE a = 700")
    engine.execute("UPDATE t SET g = 5 WHERE a = 14")
    rows = engine.reader.restricted_image(
        history.table, engine.catalog.newest_version, {"g": pa.array([5, 7], pa.int32())}
    )
    assert rows is not None
    found = {(r["a"], r["g"], r["s"]) for r in rows.to_pylist() if r["g"] in (5, 7)}
    expected = {(a, a % 100, "y" if a % 2 == 0 else "x") for a in range(1500) if a % 100 in (5, 7)}
    assert found == expected | {(14, 5, "y")}
    assert rows.num_rows < 100
