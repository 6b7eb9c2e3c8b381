"""Triggers: stored DML over the deltas of each commit, exactly once, against a model that runs it in DuckDB."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, ConflictError, CQError, DestinationError, Engine
from cq_engine.core import faults
from cq_engine.destinations import Retry
from tests.limits import limit
from tests.oracle.law import difference


@pytest.fixture
def engine(warehouse: Path, once: SparkSession) -> Iterator[Engine]:
    with connected(warehouse, once) as opened:
        opened.execute("CREATE TABLE t (id INT PRIMARY KEY, k INT, n INT)")
        yield opened


def connected(warehouse: Path, spark: SparkSession) -> Engine:
    engine = cq_engine.connect(warehouse, spark=spark, scheduler=False)
    engine.delivery.retry = Retry(attempts=2, base=0.0)
    return engine


def trigger(engine: Engine, name: str, *script: str, clauses: str = "") -> None:
    engine.execute(f"CREATE DESTINATION {name} TYPE trigger AS BEGIN {'; '.join(script)}; END {clauses}")


def rows(engine: Engine, sql: str) -> list[tuple[Any, ...]]:
    return sorted(engine.execute(sql).fetchall(), key=repr)


def shown(engine: Engine, *names: str) -> list[tuple[Any, ...]]:
    found = engine.execute("SHOW DESTINATIONS").to_arrow().to_pylist()
    return [tuple(row[name] for name in names) for row in found]


# ---------------------------------------------------------------- the model

TARGETS = {
    "acc": "k INT PRIMARY KEY, total BIGINT, last BIGINT",
    "log": "v BIGINT, m STRING, id INT, n INT, was INT",
}
SCRIPT = (
    """INSERT INTO log{s} SELECT cq_commit_version(), 'I', id, n, NULL FROM inserted /* one; and */
       UNION ALL SELECT CQ_COMMIT_VERSION( ), 'D', id, n, NULL FROM deleted UNION ALL SELECT cq_commit_version(),
       'U', id, n, CASE WHEN k = old_k THEN old_n ELSE -old_n END FROM updated""",
    """INSERT INTO acc{s} SELECT DISTINCT k, 0, 0 FROM (SELECT k FROM inserted UNION ALL SELECT k FROM updated) x
       WHERE k NOT IN (SELECT k FROM acc{s})""",
    """UPDATE acc{s} SET last = cq_commit_version(), total = total + (SELECT coalesce(sum(d.n), 0) FROM (
       SELECT k, n FROM inserted UNION ALL SELECT k, -n FROM deleted UNION ALL SELECT k, n FROM updated
       UNION ALL SELECT old_k, -old_n FROM updated) d WHERE d.k = acc{s}.k)""",
    "DELETE FROM acc{s} WHERE total > 100 OR k IN (SELECT k FROM deleted WHERE n < 3)",
)  # fmt: skip
WHEN = "n + coalesce(old_n, 0) <> 7"


def model(engine: Engine, query: str, each_row: bool, when: bool) -> dict[str, list[tuple[Any, ...]]]:
    """The targets after the script has run over the query's deltas, one commit or one delta after the other."""
    with duckdb.connect() as db:
        for name, columns in TARGETS.items():
            db.execute(f"CREATE TABLE {name} ({columns})")
        runs: dict[tuple[int, int], list[Any]] = {}
        for delta in engine.deltas(query):
            runs.setdefault((delta.commit_version, delta.sequence if each_row else 0), []).append(delta)
        for (version, _), found in runs.items():
            chosen = [
                d for d in found
                if not when or (d.new or d.old)[2] + (d.old[2] if d.old else 0) != 7
            ]  # fmt: skip
            if not chosen:
                continue
            for table, marker, values in (
                ("inserted", "I", [d.new for d in chosen if d.marker == "I"]),
                ("deleted", "D", [d.old for d in chosen if d.marker == "D"]),
                ("updated", "U", [(*d.new, *d.old) for d in chosen if d.marker == "U"]),
            ):
                names = ["id", "k", "n"] + (["old_id", "old_k", "old_n"] if marker == "U" else [])
                db.execute(f"CREATE OR REPLACE TABLE {table} ({', '.join(f'{n} INT' for n in names)})")
                if values:
                    db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", values)
            for statement in SCRIPT:
                text = statement.format(s="").replace("CQ_COMMIT_VERSION( )", f"{version}")
                db.execute(text.replace("cq_commit_version()", f"{version}"))
        return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in TARGETS}


def change(engine: Engine, chance: random.Random, ids: set[int]) -> None:
    """A transaction of a few inserts, updates and deletes."""
    with engine.transaction() as tx:
        fresh = [n for n in range(30) if n not in ids]
        new = chance.sample(fresh, min(len(fresh), chance.randint(0, 3)))
        if new:
            values = ", ".join(f"({n}, {chance.randint(1, 3)}, {chance.randint(1, 9)})" for n in new)
            tx.execute(f"INSERT INTO t VALUES {values}")
        for number in chance.sample(sorted(ids), min(len(ids), chance.randint(0, 3))):
            if chance.random() < 0.4:
                tx.execute(f"DELETE FROM t WHERE id = {number}")
                ids.discard(number)
            else:
                tx.execute(
                    f"UPDATE t SET n = {chance.randint(1, 9)}, k = {chance.randint(1, 3)} WHERE id = {number}"
                )
        ids.update(new)


@pytest.mark.parametrize("mode", ["TRANSACTIONAL", pytest.param("COMPRESSED", marks=pytest.mark.long)])
def test_what_a_script_leaves_is_what_the_model_leaves(engine: Engine, mode: str) -> None:
    """Over each commit, and over each delta; with a WHEN and without; one commit for each source commit."""
    chance = random.Random(f"trigger {mode}")
    kinds = {"a": (False, mode == "TRANSACTIONAL"), "b": (True, True)}
    for suffix, (each_row, when) in kinds.items():
        for name, columns in TARGETS.items():
            engine.execute(f"CREATE TABLE {name}_{suffix} ({columns})")
        clauses = (f"WHEN ({WHEN}) " if when else "") + (
            "FOR EACH ROW" if each_row else "FOR EACH TRANSACTION"
        )
        trigger(engine, f"d_{suffix}", *(each.format(s=f"_{suffix}") for each in SCRIPT), clauses=clauses)
        engine.execute(
            f"CREATE CONTINUOUS QUERY q_{suffix} COMPUTE {mode} DELTA ON DEMAND DESTINATION d_{suffix} "
            "AS SELECT id, k, n FROM t"
        )
    ids: set[int] = set()
    for step in range(4):
        change(engine, chance, ids)
        if step in (1, 3):
            for suffix in kinds:
                engine.refresh(f"q_{suffix}")
    for suffix, (each_row, when) in kinds.items():
        wanted = model(engine, f"q_{suffix}", each_row, when)
        assert len(wanted["log"]) > 5
        for name, values in wanted.items():
            got = engine.execute(f"SELECT * FROM {name}_{suffix}").fetchall()
            assert not difference(got, values), (mode, suffix, name)
        commits = f"SELECT DISTINCT v, _commit_version FROM log_{suffix} CHANGES FROM VERSION 1"
        found = engine.execute(commits).fetchall()
        assert len(found) == len({v for v, _ in found}) == len({w for _, w in found}), "one commit for each"
    assert all(error == "" for (error,) in shown(engine, "error"))


# ---------------------------------------------------------------- once, whatever happens


class Crash(BaseException):
    """A process that dies: nothing may catch it."""


def test_a_crash_at_any_point_applies_each_commit_once(
    engine: Engine, warehouse: Path, once: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.execute("CREATE TABLE sums (k INT PRIMARY KEY, n BIGINT)")
    engine.execute("CREATE TABLE log (id INT, v BIGINT)")
    engine.execute("INSERT INTO sums VALUES (1, 0)")
    trigger(
        engine, "d", "UPDATE sums SET n = n + (SELECT sum(n) FROM inserted)",
        "INSERT INTO log SELECT id, cq_commit_version() FROM inserted",
    )  # fmt: skip
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION d AS SELECT id, n FROM t")
    points = [
        "deliver.begin", "deliver.before_cursor", "deliver.after_cursor", "commit.begin", "commit.staged",
        "commit.before_catalog", "catalog.begin", "catalog.before_commit", "catalog.after_commit", "commit.after_catalog",
    ]  # fmt: skip
    plain = faults.point
    for number, name in enumerate(points, 1):
        engine.execute(f"INSERT INTO t VALUES ({number}, 1, {number})")
        engine.execute(f"INSERT INTO t VALUES ({100 + number}, 1, {number})")
        serving = [False]

        def point(reached: str, *_: object, wanted: str = name, serving: list[bool] = serving) -> None:
            serving[0] |= reached == "refresh.after_catalog"
            if serving[0] and reached == wanted:
                raise Crash(wanted)

        monkeypatch.setattr(faults, "point", point)
        with pytest.raises(Crash):
            engine.refresh("q")
        monkeypatch.setattr(faults, "point", plain)
        engine.catalog.close()
        engine = connected(warehouse, once)
        engine.drain()
        engine.refresh("q")
        wanted = 2 * sum(range(1, number + 1))
        assert engine.execute("SELECT n FROM sums").fetchall() == [(wanted,)], name
        ids = [*range(1, number + 1), *range(101, 101 + number)]
        assert [i for (i,) in rows(engine, "SELECT id FROM log")] == sorted(ids, key=lambda n: repr((n,))), (
            name
        )
    engine.close()


def test_beside_a_writer_of_the_same_table(engine: Engine) -> None:
    """Each commit of the writer meets the script in the middle: it runs again, and that is no failure."""
    engine.execute("CREATE TABLE sums (k INT PRIMARY KEY, n BIGINT)")
    engine.execute("INSERT INTO sums VALUES (1, 0)")
    trigger(engine, "d", "UPDATE sums SET n = n + (SELECT sum(n) FROM inserted)")
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION d AS SELECT id, n FROM t")
    for number in range(5):
        engine.execute(f"INSERT INTO t VALUES ({number}, 1, 1000)")
    done = threading.Event()
    added = [0]

    def write() -> None:
        while not done.is_set():
            with suppress(ConflictError):  # where the script was faster each time
                engine.execute("UPDATE sums SET n = n + 1")
                added[0] += 1

    limit(engine, statement_tries=3)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        engine.refresh("q")
    finally:
        done.set()
        writer.join()
    assert engine.execute("SELECT n FROM sums").fetchall() == [(5000 + added[0],)]
    assert shown(engine, "failures", "rows", "lag_versions") == [(0, 5, 0)]


@pytest.mark.parametrize("each", ["TRANSACTION", pytest.param("ROW", marks=pytest.mark.long)])
def test_more_than_the_driver_takes(engine: Engine, each: str) -> None:
    count = 200 if each == "TRANSACTION" else 6
    small = 50 if each == "TRANSACTION" else 2
    engine.execute("CREATE TABLE log (m STRING, id INT, n INT, was INT, v BIGINT)")
    trigger(
        engine, "d", "INSERT INTO log SELECT 'I', id, n, NULL, cq_commit_version() FROM inserted",
        "INSERT INTO log SELECT 'U', id, n, old_n, cq_commit_version() FROM updated",
        "INSERT INTO log SELECT 'D', id, n, NULL, cq_commit_version() FROM deleted",
        clauses=f"WHEN (id <> 3) FOR EACH {each}",
    )  # fmt: skip
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION d AS SELECT id, n FROM t")
    engine.execute(f"INSERT INTO t SELECT id, 1, id FROM range({count})")
    engine.execute("INSERT INTO t VALUES (-1, 1, 1)")
    with engine.transaction() as tx:
        tx.execute("UPDATE t SET n = n + 1 WHERE id % 2 = 0")
        tx.execute("DELETE FROM t WHERE id = 5")
    limit(
        engine,
        log_block_rows=small,
        change_rows=small,
        inline_bytes=0,
        pending_rows=small,
        driver_changes=small,
    )
    engine.reader.forget_all()
    engine.refresh("q")
    wanted = [("I", n, n, None) for n in range(count) if n != 3] + [("I", -1, 1, None), ("D", 5, 5, None)]
    wanted += [("U", n, n + 1, n) for n in range(0, count, 2)]
    assert not difference(engine.execute("SELECT m, id, n, was FROM log").fetchall(), wanted)
    assert {v for (v,) in rows(engine, "SELECT v FROM log")} == {1, 2, 3}
    assert shown(engine, "rows", "lag_versions") == [(count + 2 + count // 2, 0)]


# ---------------------------------------------------------------- what is refused


def test_a_failure_stops_before_its_commit(engine: Engine) -> None:
    """Nothing of the commit is there, the rest waits, and the error says where; then pause, resume and replay."""
    engine.execute("CREATE TABLE log (id INT, n INT NOT NULL)")
    trigger(
        engine, "d", "INSERT INTO log SELECT id, 0 FROM inserted",
        "INSERT INTO log\n  SELECT id,\n 10 DIV (n - 5) FROM inserted",
        clauses="FOR EACH ROW WITH (on_failure = pause, max_attempts = 2, backoff = '0 seconds')",
    )  # fmt: skip
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION d AS SELECT id, n FROM t")
    engine.execute("INSERT INTO t VALUES (1, 1, 4)")
    engine.execute("INSERT INTO t VALUES (2, 1, 4), (3, 1, 5)")
    engine.execute("INSERT INTO t VALUES (4, 1, 4)")
    engine.refresh("q")
    assert rows(engine, "SELECT id FROM log") == [(1,), (1,)]
    ((state, delivered, error),) = shown(engine, "state", "delivered", "error")
    assert (state, delivered) == ("RETRYING", 1)
    assert (
        "trigger d failed on the delta of (id = 3) in commit 2 of continuous query q: statement 2 (line 1"
        in error
    )
    engine.refresh("q")
    assert shown(engine, "state", "delivered") == [("PAUSED", 1)]
    engine.drain()
    assert rows(engine, "SELECT id FROM log") == [(1,), (1,)]
    engine.execute("ALTER DESTINATION d SKIP TO VERSION 2")
    engine.execute("ALTER DESTINATION d RESUME")
    engine.drain()
    assert rows(engine, "SELECT DISTINCT id FROM log") == [(1,), (4,)]
    engine.execute("ALTER DESTINATION d REPLAY FROM VERSION 2")
    engine.drain()
    assert rows(engine, "SELECT id FROM log") == [(1,), (1,), (4,), (4,), (4,), (4,)], "its DML has run again"


def test_a_poisoned_commit_goes_to_the_dead_letters_whole(
    engine: Engine, warehouse: Path, once: SparkSession
) -> None:
    engine.execute("CREATE TABLE log (id INT, n INT NOT NULL)")
    trigger(
        engine, "d", "INSERT INTO log SELECT id, nullif(n, 5) FROM inserted",
        clauses="WITH (on_failure = dead_letter, max_attempts = 2, backoff = '0 seconds')",
    )  # fmt: skip
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION d AS SELECT id, n FROM t")
    engine.execute("INSERT INTO t VALUES (1, 1, 4)")
    engine.execute("INSERT INTO t VALUES (2, 1, 5), (3, 1, 4), (4, 1, 4)")
    engine.execute("INSERT INTO t VALUES (5, 1, 4)")
    limit(engine, batch_deltas=2)  # the dead letters take it in two parts
    engine.refresh("q")
    engine.drain()
    assert rows(engine, "SELECT id FROM log") == [(1,), (5,)]
    found = rows(engine, "SELECT key, commit_version, error FROM d_dead")
    assert [(json.loads(key)["id"], version) for key, version, _ in found] == [(2, 2), (3, 2), (4, 2)]
    assert all("log.n must not be NULL" in error for *_, error in found)
    assert shown(engine, "state", "failures", "dead", "rows") == [("ACTIVE", 0, 3, 2)]


def test_a_condition_that_fails_says_at_which_commit(engine: Engine) -> None:
    engine.execute("CREATE TABLE log (id INT)")
    trigger(engine, "d", "INSERT INTO log SELECT id FROM inserted", clauses="WHEN (10 DIV n > 1)")
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION d AS SELECT id, n FROM t")
    for number, n in enumerate((2, 9, 3, 0, 1)):
        engine.execute(f"INSERT INTO t VALUES ({number}, 1, {n})")
    engine.refresh("q")
    assert rows(engine, "SELECT id FROM log") == [(0,), (2,)], "those before it"
    ((delivered, error),) = shown(engine, "delivered", "error")
    assert delivered == 3
    assert "trigger d failed on commit 4 of continuous query q: in its WHEN: Division by zero" in error
    engine.execute("ALTER DESTINATION d SKIP TO VERSION 4")
    engine.drain()
    assert rows(engine, "SELECT id FROM log") == [(0,), (2,), (4,)]


# ---------------------------------------------------------------- chains


def test_its_changes_reach_further_queries(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT)")
    trigger(engine, "to_a", "INSERT INTO a SELECT id, n + 1 FROM inserted")
    trigger(engine, "to_b", "INSERT INTO b SELECT id, n + 1 FROM inserted")
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION to_a AS SELECT id, n FROM t")
    engine.execute("CREATE CONTINUOUS QUERY r DESTINATION to_b AS SELECT id, n FROM a")
    engine.execute("CREATE CONTINUOUS QUERY s DESTINATION TABLE seen AS SELECT id, n FROM b")
    engine.execute("INSERT INTO t VALUES (1, 1, 10), (2, 1, 20)")
    engine.execute("INSERT INTO t VALUES (3, 1, 30)")
    engine.drain()
    assert rows(engine, "SELECT * FROM seen") == [(1, 12), (2, 22), (3, 32)]
    assert set(engine.catalog.depths(1, engine.catalog.newest_version).values()) == {1, 2}, "and of the table"


@pytest.mark.parametrize("through", ["", "a table", "compressed"])
def test_recursion_ends_also_where_the_engine_restarts(
    engine: Engine, warehouse: Path, once: SparkSession, through: str
) -> None:
    limit_of = "WITH (max_depth = 3, backoff = '0 seconds')"
    trigger(engine, "again", "INSERT INTO t SELECT id + 1, k, n FROM inserted", clauses=limit_of)
    source, mode = "t", "COMPUTE COMPRESSED DELTA ON COMMIT" if through == "compressed" else ""
    if through == "a table":
        engine.execute("CREATE CONTINUOUS QUERY above DESTINATION TABLE copied AS SELECT id, k, n FROM t")
        source = "copied"
    engine.execute(f"CREATE CONTINUOUS QUERY q {mode} DESTINATION again AS SELECT id, k, n FROM {source}")
    engine.execute("INSERT INTO t VALUES (1, 1, 10)")
    for _ in range(2):
        if through == "a table":
            engine.refresh("above")
        engine.refresh("q")
    engine.close()
    with connected(warehouse, once) as engine:
        with pytest.raises(DestinationError) as caught:
            engine.drain()
        assert "3 triggers have led to it" in caught.value.render()
        assert rows(engine, "SELECT id FROM t") == [(1,), (2,), (3,), (4,)]
        engine.execute("ALTER DESTINATION again SET WITH (max_depth = 4)")
        with pytest.raises(DestinationError):
            engine.drain()
        assert rows(engine, "SELECT max(id) FROM t") == [(5,)]
        engine.execute(f"ALTER DESTINATION again SKIP TO VERSION {engine.catalog.status('q').position}")
        engine.execute("INSERT INTO t VALUES (10, 1, 10)")
        with pytest.raises(DestinationError):
            engine.drain()
        assert rows(engine, "SELECT max(id) FROM t") == [(14,)], "a commit of a user begins anew"


# ---------------------------------------------------------------- what is declared


@pytest.mark.parametrize(
    ("sql", "said", "place"),
    [
        ("TYPE trigger", "a trigger needs a script", (1, 27)),
        ("TYPE table AS BEGIN DELETE FROM t; END", "a table has no script", (1, 27)),
        ("TYPE trigger AS BEGIN DELETE FROM t;\n DELETE FROM tt; END", "there is no table tt", (2, 14)),
        ("TYPE trigger AS BEGIN UPDATE t SET n = 1;\n INSERT INTO t SELECT * FROM insertd; END", "no table insertd", (2, 30)),
        ("TYPE trigger AS BEGIN DELETE FROM t;\n SELECT 1; END", "'SELECT' cannot stand in the script", (2, 2)),
        ("TYPE trigger AS BEGIN DELETE FROM inserted; END", "there is no table inserted", (1, 56)),
        ("TYPE trigger AS BEGIN DELETE FROM t; END WHEN (n IN (SELECT n FROM t))", "reads a table", (1, 69)),
        ("TYPE trigger AS BEGIN DELETE FROM t; END WITH (max_depth = 0)", "max_depth = '0' is not possible", (1, 69)),
    ],
)  # fmt: skip
def test_errors_of_the_declaration(engine: Engine, sql: str, said: str, place: tuple[int, int]) -> None:
    with pytest.raises(CQError) as caught:
        engine.execute(f"CREATE DESTINATION d {sql}")
    assert said in caught.value.message
    assert caught.value.location is not None
    assert (caught.value.location.line, caught.value.location.column) == place


def test_a_query_that_does_not_fit(engine: Engine) -> None:
    engine.execute("CREATE TABLE log (id INT, v BIGINT, at TIMESTAMP)")
    trigger(
        engine,
        "d",
        "DELETE FROM log WHERE id < 0",
        "INSERT INTO log\n  SELECT id, n, cq_commit_time() FROM inserted",
    )
    trigger(engine, "w", "DELETE FROM log", clauses="WHEN (cq_commit_version() > 0 AND m > 3)")
    wrong = "AS SELECT id, k FROM t"
    engine.execute("CREATE CONTINUOUS QUERY p DESTINATION d AS SELECT id, k, n FROM t WHERE id < 0")
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION d AS SELECT id, k, n FROM t")
    for sql, said in {
        f"CREATE CONTINUOUS QUERY r DESTINATION d {wrong}": "trigger d cannot run for continuous query r, in statement 2 "
        "(line 2, column 14 of its script): ",
        f"CREATE OR REPLACE CONTINUOUS QUERY p DESTINATION d {wrong}": "trigger d cannot run for continuous query p",
        "ALTER CONTINUOUS QUERY q SET DESTINATION w": "trigger w cannot run for continuous query q, in its WHEN",
        "CREATE CONTINUOUS QUERY r DESTINATION TRIGGER x AS SELECT id FROM t": "there is no trigger x",
        "CREATE CONTINUOUS QUERY r DESTINATION d AS SELECT id, n, n AS old_n FROM t": "has a column old_n",
    }.items():
        with pytest.raises((AnalysisError, DestinationError)) as caught:
            engine.execute(sql)
        assert said in caught.value.message, sql
    engine.execute("INSERT INTO t VALUES (1, 1, 4)")
    engine.drain()
    ((number, version, moment),) = engine.execute("SELECT * FROM log").fetchall()
    assert (number, version, moment) == (1, 4, engine.catalog.timestamp(1))


def test_it_is_shown(engine: Engine) -> None:
    trigger(
        engine, "d", "DELETE FROM t WHERE n > 3", clauses="WHEN (n > (2)) FOR EACH ROW WITH (max_depth = 2)"
    )
    facts = engine.execute("DESCRIBE DESTINATION d").fetchall()
    assert {("script", "DELETE FROM t WHERE n > 3;"), ("for each", "row"), ("when", "n > (2)")} <= set(facts)
    assert ("option", "max_depth = 2") in facts
