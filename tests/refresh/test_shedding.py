"""Load shedding: what is left out of a stream, what its readers have, and how far their aggregates may be off."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CQError, Engine
from cq_engine.core import faults
from cq_engine.core.limits import Limits
from cq_engine.refresh.shedding import Shed, room_for
from tests.accumulated import accumulated, rows

MOST = 30
GROUPED = "SELECT r.note, count(*) AS n, sum(a.x) AS total FROM {} a JOIN r ON r.k = a.k GROUP BY r.note"
TAGGED = (
    "SELECT t.tag AS note, count(*) AS n, sum(a.x) AS total FROM {} a JOIN tags t ON t.k = a.k GROUP BY t.tag"
)
JOINED = "SELECT a.id, a.x, r.note FROM kept a JOIN r ON r.k = a.k"


def opened(warehouse: Path, spark: SparkSession, **limits: Any) -> Engine:
    return cq_engine.connect(
        warehouse,
        spark=spark,
        scheduler=False,
        conf={"maintenance": "manual"},
        limits=Limits(small_rows=-1, row_group_rows=20, snapshot_file_rows=100, **limits),
    )


@pytest.fixture
def engine(request: pytest.FixtureRequest, warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    """A refresh by the driver, or by executors, as the test asks: then the driver takes one row only."""
    limits = {"refresh_rows": 1} if request.param == "executors" else {}
    with opened(warehouse, spark, **limits) as engine:
        define(engine)
        yield engine


def define(engine: Engine) -> None:
    engine.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT, x INT)")
    engine.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
    engine.execute("INSERT INTO r SELECT id, concat('n', id % 3) FROM range(20)")
    engine.execute("INSERT INTO s SELECT id, id % 25, id FROM range(10)")


def create(engine: Engine, name: str, text: str, options: str = "", mode: str = "TRANSACTIONAL") -> None:
    engine.execute(
        f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND START FROM SNAPSHOT {options} AS {text}"
    )


def markers(engine: Engine, name: str, after: int) -> Counter[str]:
    return Counter(delta.marker for delta in engine.deltas(name) if delta.commit_version > after)


class Stream:
    """Random commits to the stream and to the table, and how long each row has been there."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.chance = random.Random(seed)
        self.alive = set(range(10))
        self.born = dict.fromkeys(range(10), 0)
        self.next = 10

    def commit(self) -> None:
        with self.engine.transaction() as tx:
            for _ in range(self.chance.randint(1, 3)):
                self._step(tx)

    def _step(self, tx: Any) -> None:
        kind = self.chance.choice(["burst", "burst", "change", "gone", "back", "table"])
        some = self.chance.sample(sorted(self.alive), min(6, len(self.alive)))
        listed = ", ".join(map(str, some))
        if kind == "burst":
            new = range(self.next, self.next + self.chance.randint(1, 25))
            tx.execute(
                f"INSERT INTO s SELECT id, id * 7 % 25, id % 40 - 20 FROM range({new.start}, {new.stop})"
            )
            self._come(new)
            self.next = new.stop
        elif kind == "change":
            tx.execute(f"UPDATE s SET x = x + 1, k = (k + 1) % 25 WHERE id IN ({listed})")
        elif kind == "gone":
            tx.execute(f"DELETE FROM s WHERE id IN ({listed})")
            self.alive -= set(some)
        elif kind == "back":
            gone = self.chance.sample(
                sorted(set(range(self.next)) - self.alive), min(3, self.next - len(self.alive))
            )
            for number in gone:
                tx.execute(f"INSERT INTO s VALUES ({number}, {number % 25}, {number})")
            self._come(gone)
        else:
            tx.execute(
                f"UPDATE r SET note = 'n{self.chance.randint(0, 4)}' WHERE k = {self.chance.randint(0, 19)}"
            )

    def _come(self, new: Any) -> None:
        for number in new:
            self.alive.add(number)
            self.born[number] = self.born.get(number, 0) + 1


def check_kept(engine: Engine, whole: str = "s") -> set[int]:
    """The result has rows of the stream, as they are, and the deltas are those of it; the ids that are left out."""
    full, kept = rows(engine, f"SELECT * FROM {whole}"), rows(engine, "SELECT * FROM kept")
    assert set(kept) <= set(full), "no row is there that is not, or as it was"
    assert accumulated(engine, "kept") == kept
    return {row[0] for row in full} - {row[0] for row in kept}


def check_bounds(engine: Engine, reader: str, text: str, most_met: int) -> None:
    """Each row meets at most so many: counts are too small by at most that many times the rows left out, sums are off by at most
    that many times the sum of their absolute values."""
    ((count, total),) = rows(engine, "SELECT count(*), coalesce(sum(abs(x)), 0) FROM every")
    ((there, known),) = rows(engine, "SELECT count(*), coalesce(sum(abs(x)), 0) FROM kept")
    ((largest,),) = rows(engine, "SELECT coalesce(max(abs(x)), 0) FROM every")
    missing, bound = count - there, total - known
    assert 0 <= bound <= missing * largest
    exact = {note: (n, sum_) for note, n, sum_ in rows(engine, text.format("every"))}
    found = {note: (n, sum_) for note, n, sum_ in rows(engine, f"SELECT note, n, total FROM {reader}")}
    assert found.keys() <= exact.keys()
    off = [
        (n - found.get(note, (0, 0))[0], sum_ - found.get(note, (0, 0))[1])
        for note, (n, sum_) in exact.items()
    ]
    assert all(each >= 0 for each, _ in off)
    assert sum(each for each, _ in off) <= most_met * missing
    assert sum(abs(each) for _, each in off) <= most_met * bound


@pytest.mark.parametrize(
    ("engine", "seed", "mode", "where"),
    [
        ("driver", 2, "TRANSACTIONAL", " WHERE x % 3 <> 0"),
        ("executors", 1, "COMPRESSED", ""),
        pytest.param("driver", 0, "TRANSACTIONAL", "", marks=pytest.mark.long),
        pytest.param("driver", 1, "COMPRESSED", "", marks=pytest.mark.long),
        pytest.param("executors", 0, "TRANSACTIONAL", "", marks=pytest.mark.long),
        pytest.param("executors", 2, "TRANSACTIONAL", " WHERE x % 3 <> 0", marks=pytest.mark.long),
    ],
    indirect=["engine"],
)
def test_what_is_left_out_stays_out(engine: Engine, seed: int, mode: str, where: str) -> None:
    """Over random histories, in both modes, by the driver and by executors, with readers that fall behind."""
    create(engine, "kept", f"SELECT id, k, x FROM s{where}", f"WITH (shed = '{MOST}')", mode)
    create(engine, "every", f"SELECT id, k, x FROM s{where}", mode=mode)
    create(engine, "joined", JOINED, "WITH (join = 'mesh', memory = '64 KB')", mode)
    create(engine, "grouped", GROUPED.format("kept"), mode=mode)
    engine.execute("CREATE TABLE tags (id INT PRIMARY KEY, k BIGINT, tag STRING)")
    engine.execute("INSERT INTO tags SELECT id, (id * id) % 20, concat('t', id % 4) FROM range(50)")
    create(engine, "tagged", TAGGED.format("kept"), mode=mode)
    ((repeated,),) = rows(engine, "SELECT max(n) FROM (SELECT count(*) AS n FROM tags GROUP BY k)")
    assert repeated > 1
    stream, done, out = Stream(engine, seed), Counter[str](), dict[int, int]()
    for n in range(6):
        for _ in range(2):
            stream.commit()
        before = engine.describe("kept").position
        room = room_for(engine.catalog, engine.queries.find("kept"))
        engine.refresh("kept")
        shed = engine.queries.refresher.reports["kept"].shed
        engine.refresh("every")
        if shed is None:  # nothing came of the stream
            continue
        kept, every = markers(engine, "kept", before), markers(engine, "every", before)
        assert (shed.new, shed.room) == (every["I"], room)
        assert shed.left_out == every["I"] - kept["I"]
        assert shed.later == every["D"] + every["U"] - kept["D"] - kept["U"]
        assert room is not None
        if engine.catalog.limits.refresh_rows > 1:
            assert kept["I"] <= room
        done += Counter(left_out=shed.left_out, later=shed.later)
        missing = check_kept(engine, "every")
        assert where or all(number in missing for number, born in out.items()
                   if number in stream.alive and stream.born[number] == born)  # fmt: skip
        out = {number: stream.born[number] for number in missing}
        if n % 3 == 2:
            readers = {"joined": JOINED, "grouped": GROUPED, "tagged": TAGGED}
            for name, text in readers.items():
                engine.refresh(name)
                assert accumulated(engine, name) == rows(engine, text.format("kept"))
            check_bounds(engine, "grouped", GROUPED, 1)
            check_bounds(engine, "tagged", TAGGED, repeated)
    assert done["left_out"] > 10
    assert done["later"] > 0


@pytest.mark.parametrize("engine", ["driver", "executors"], indirect=True)
def test_keys_may_be_of_any_type_that_a_key_can_have(engine: Engine) -> None:
    """Arrow groups no rows by arrays."""
    engine.execute("CREATE TABLE t (id ARRAY<INT>, part STRING, x INT, PRIMARY KEY (id, part))")
    engine.execute("INSERT INTO t SELECT array(id), 'a', id FROM range(10)")
    create(engine, "kept", "SELECT * FROM t", f"WITH (shed = '{MOST}')")
    create(engine, "reader", "SELECT count(*) AS n FROM kept")
    engine.execute("UPDATE t SET x = x + 1 WHERE x > 4")
    engine.execute("UPDATE t SET x = x + 1 WHERE x > 8")
    engine.execute("DELETE FROM t WHERE x < 3")
    engine.execute("INSERT INTO t SELECT array(id, id), 'b', id FROM range(20, 25)")
    engine.refresh("kept")
    assert (
        accumulated(engine, "kept") == rows(engine, "SELECT * FROM kept") == rows(engine, "SELECT * FROM t")
    )


@pytest.fixture
def plain(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with opened(warehouse, spark) as engine:
        define(engine)
        yield engine


def test_nothing_is_left_out_where_nobody_waits(plain: Engine) -> None:
    """No reader, or one that is paused; and with 'off', which only keeps out what is out."""
    create(plain, "kept", "SELECT id, k, x FROM s", f"WITH (shed = '{MOST}')")
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(100, 200)")
    plain.refresh("kept")
    assert plain.queries.refresher.reports["kept"].shed == Shed(100, 0, 0, None)
    create(plain, "joined", JOINED)
    plain.execute("ALTER CONTINUOUS QUERY joined PAUSE")
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(200, 300)")
    plain.refresh("kept")
    assert check_kept(plain) == set()
    plain.execute("ALTER CONTINUOUS QUERY joined RESUME")
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(300, 400)")
    plain.refresh("kept")
    out = check_kept(plain)
    assert out == set(range(300, 400)), "100 wait already"
    plain.execute("ALTER CONTINUOUS QUERY kept SET WITH (shed = 'off')")
    plain.execute("UPDATE s SET x = 7 WHERE id >= 290")
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(400, 500)")
    plain.refresh("kept")
    assert check_kept(plain) == out
    plain.execute("DELETE FROM s WHERE id >= 300 AND id < 350")
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(300, 350)")
    plain.refresh("kept")
    assert check_kept(plain) == set(range(350, 400)), "what comes anew is a new row"


def test_what_was_left_out_is_said(plain: Engine) -> None:
    create(plain, "kept", "SELECT id, k, x FROM s", f"WITH (shed = '{MOST}')")
    create(plain, "joined", JOINED)
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(100, 150)")
    said = "20 of 50 new rows left out, with room for 30 change rows; 0 changes of rows that were left out before"
    told = "\n".join(row[0] for row in plain.execute("EXPLAIN ANALYZE CONTINUOUS QUERY kept").fetchall())
    assert f"shed: {said}" in told, told
    (refresh, *_) = plain.execute("SHOW REFRESHES FOR kept").fetchall()
    assert any(said in str(value) for value in refresh), refresh


def test_a_crash_before_the_commit_leaves_nothing_out(plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        pass

    def crash(name: str, file: Path | None = None) -> None:
        if name == "refresh.before_catalog":
            raise Crash

    create(plain, "kept", "SELECT id, k, x FROM s", f"WITH (shed = '{MOST}')")
    create(plain, "joined", JOINED)
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(100, 150)")
    before = accumulated(plain, "kept")
    monkeypatch.setattr(faults, "point", crash)
    with pytest.raises(Crash):
        plain.refresh("kept")
    monkeypatch.undo()
    assert accumulated(plain, "kept") == rows(plain, "SELECT * FROM kept") == before
    plain.refresh("kept")
    assert len(check_kept(plain)) == 20


@pytest.mark.parametrize(
    "text",
    [
        "SELECT s.id, r.note FROM s JOIN r ON s.k = r.k",
        "SELECT k, count(*) AS n FROM s GROUP BY k",
        "SELECT k, x FROM s",
        "SELECT id, k FROM s UNION ALL SELECT id + 1000, k FROM s",
        "SELECT DISTINCT k FROM s",
    ],
)
def test_only_rows_of_one_table_are_left_out(plain: Engine, text: str) -> None:
    with pytest.raises(
        AnalysisError, match="shed is for queries that select rows of one table, with its key"
    ):
        create(plain, "kept", text, "WITH (shed = '10')")


def test_what_could_not_be_known_is_refused(plain: Engine) -> None:
    create(plain, "kept", "SELECT id, k, x FROM s", f"WITH (shed = '{MOST}')")
    create(plain, "joined", JOINED)
    plain.execute("INSERT INTO s SELECT id, 1, 1 FROM range(100, 150)")
    create(plain, "whole", "SELECT id FROM s")
    for statement, message in {
        "ALTER CONTINUOUS QUERY kept RESUME FROM NOW": "kept cannot skip versions 3 to 3",
        "ALTER CONTINUOUS QUERY kept AS SELECT id, k, x + 1 AS x FROM s": "gives another kind of result",
        "ALTER CONTINUOUS QUERY kept SET WITH (shed = 'many')": "shed = 'many' is no number of rows",
        "ALTER CONTINUOUS QUERY whole SET WITH (shed = '5')": "whole was created without shed",
    }.items():
        with pytest.raises(CQError, match=re.escape(message)):
            plain.execute(statement)
    plain.refresh("kept")
    plain.execute("DROP CONTINUOUS QUERY joined")
    assert len(check_kept(plain)) == 20, "the result is kept also where nobody reads it"
    create(plain, "joined", JOINED)
    assert accumulated(plain, "joined") == rows(plain, JOINED)
