"""Queues as people and programs use them: statements, Python, several processes, on both databases; without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import cq_engine
from cq_engine import CatalogError, CQError, Engine, ManualClock, TransactionError
from cq_engine.catalog.store import Catalog
from tests.destinations.queues import Queues

ROOT = Path(__file__).parents[2]
COLUMNS = ["message_id", "query", "marker", "key", "new", "old", "commit_version", "commit_time", "attempt"]


@pytest.fixture
def world(warehouse: Path, database_url: str | None) -> Iterator[Queues]:
    """What another process refreshes."""
    made = Queues(warehouse, database_url)
    yield made
    made.catalog.close()


@pytest.fixture
def opened(world: Queues, warehouse: Path, database_url: str | None) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def connect(**options: Any) -> Engine:
        given = {"scheduler": False, "duties": False, **options}
        engine = cq_engine.connect(warehouse, catalog=database_url, **given)
        engines.append(engine)
        return engine

    yield connect
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(opened: Callable[..., Engine]) -> Engine:
    return opened()


def rows(engine: Engine, sql: str) -> list[dict[str, Any]]:
    result = engine.execute(sql)
    return [dict(zip(result.columns, row)) for row in result.fetchall()]


class TestStatements:
    def test_messages_are_deltas(self, world: Queues, engine: Engine) -> None:
        world.commit({"Keyed": [("I", 1, "a"), ("U", 2, "b"), ("D", 3, "c")], "Bag": [("I", 7, "z")]})
        found = rows(engine, "DEQUEUE 10 FROM q")
        assert list(found[0]) == COLUMNS
        insert, update, delete, bag = found
        assert (bag["query"], bag["marker"], bag["key"]) == ("Bag", "I", None)
        assert json.loads(bag["new"]) == {"k": 7, "v": "z0"}
        assert (json.loads(insert["key"]), insert["old"]) == ({"k": 1}, None)
        assert [json.loads(update[c]) for c in ("key", "new", "old")] == [
            {"k": 2}, {"k": 2, "v": "b1"}, {"k": 2, "v": "b0"},
        ]  # fmt: skip
        assert (json.loads(delete["old"]), delete["new"]) == ({"k": 3, "v": "c0"}, None)
        assert {each["commit_version"] for each in found} == {1}
        assert all(each["commit_time"] == world.catalog.timestamp(1) for each in found)
        assert all(each["attempt"] == 1 for each in found)

    def test_ids_are_in_the_order_of_messages_as_text(self, world: Queues, engine: Engine) -> None:
        for n in range(12):
            world.commit({"Keyed": [("I", n, "a")] * (11 if n == 3 else 1), "Bag": [("I", n, "b")]})
        ids = [each["message_id"] for each in rows(engine, "DEQUEUE 100 FROM q")]
        assert len(ids) == 34
        assert sorted(ids) == ids

    def test_ack_ends_what_this_process_has_up_to_a_message(
        self, world: Queues, opened: Callable[..., Engine]
    ) -> None:
        one, other = opened(), opened()
        for n in range(4):
            world.commit({"Keyed": [("I", n, "a")]})
        mine = rows(one, "DEQUEUE 1 FROM q") + rows(one, "DEQUEUE 1 FROM q")
        theirs = rows(other, "DEQUEUE 1 FROM q")
        mine += rows(one, "DEQUEUE 1 FROM q")
        last = mine[-1]["message_id"]
        assert one.execute(f"ACK q UP TO {last}").message == "3 messages acknowledged"
        assert one.execute(f"ACK q UP TO '{last}'").rowcount == 0
        assert one.execute(f"ACK q UP TO {theirs[0]['message_id']}").rowcount == 1, "by its name, of anybody"

    def test_reject(self, world: Queues, engine: Engine) -> None:
        world.commit({"Keyed": [("I", 1, "a"), ("I", 2, "b")]})
        first, second = (each["message_id"] for each in rows(engine, "DEQUEUE 2 FROM q GROUP 'it''s'"))
        assert (
            engine.execute(f"REJECT q GROUP 'it''s' MESSAGE {first}").message
            == f"message {first} is a dead letter"
        )
        assert engine.execute(f"REJECT q GROUP 'it''s' MESSAGE {second} REQUEUE").rowcount == 1
        (again,) = rows(engine, "DEQUEUE 2 FROM q GROUP 'it''s'")
        assert (again["message_id"], again["attempt"]) == (second, 2)
        world.catalog.follow()
        assert world.dead() == {("Keyed", 1, 1): 1}
        with pytest.raises(CQError, match="is not in flight in group it's"):
            engine.execute(f"REJECT q GROUP 'it''s' MESSAGE {first}")

    @pytest.mark.parametrize(
        ("sql", "message", "hint", "column"),
        [
            ("DEQUEUE FROM Q2", "there is no queue Q2", "did you mean q", 14),
            (
                "DEQUEUE FROM nowhere",
                "there is no queue nowhere",
                "CREATE DESTINATION nowhere TYPE queue",
                14,
            ),
            ("DEQUEUE 10001 FROM q", "10001 messages cannot be taken", "1 to 10000", 9),
            ("ACK q UP TO a1", "a1 is no message of queue q", "message_id that DEQUEUE gave", 13),
            ("ACK q UP TO a1b99a1", "a1b99a1 is no message of queue q", "message_id", 13),
            ("ACK q UP TO c500b10a1", "was not given to group default", "DEQUEUE gives it", 13),
            ("REJECT q GROUP 'g' MESSAGE a1b10a1", "was not given to group g", "DEQUEUE gives it", 28),
        ],
    )
    def test_errors_name_their_place(
        self, world: Queues, engine: Engine, sql: str, message: str, hint: str, column: int
    ) -> None:
        world.commit({"Keyed": [("I", 1, "a")]})
        with pytest.raises(CQError) as caught:
            engine.execute(sql)
        assert message in caught.value.message
        assert hint in caught.value.hint
        assert caught.value.location is not None
        assert caught.value.location.column == column

    def test_no_queue(self, world: Queues, engine: Engine) -> None:
        with pytest.raises(CatalogError, match="there is no queue keyed"):
            engine.execute("DEQUEUE FROM keyed")
        engine.execute("BEGIN")
        for sql in ("DEQUEUE FROM q", "ACK q UP TO a1b10a1", "REJECT q MESSAGE a1b10a1"):
            with pytest.raises(TransactionError, match="cannot run inside a transaction"):
                engine.execute(sql)

    def test_who_only_reads_takes_nothing(self, world: Queues, opened: Callable[..., Engine]) -> None:
        engine = opened(read_only=True, duties=None)
        for take in (lambda: engine.execute("DEQUEUE FROM q"), lambda: engine.consume("q")):
            with pytest.raises(TransactionError, match="open for reading only"):
                take()

    def test_wait_ends_with_the_first_message(self, world: Queues, engine: Engine) -> None:
        writer = threading.Timer(0.3, world.commit, [{"Keyed": [("I", 1, "a")]}])
        writer.start()
        begun = time.monotonic()
        assert len(rows(engine, "DEQUEUE 5 FROM q WAIT 20 SECONDS")) == 1
        assert time.monotonic() - begun < 10
        writer.join()
        begun = time.monotonic()
        assert rows(engine, "DEQUEUE FROM q WAIT 1 SECOND") == []
        assert time.monotonic() - begun >= 1

    def test_ctrl_c_ends_waiting_and_leaves_messages(self, world: Queues, engine: Engine) -> None:
        pressed = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        pressed.start()
        with pytest.raises(KeyboardInterrupt):
            engine.execute("DEQUEUE FROM q WAIT 30 SECONDS")
        pressed.join()
        world.commit({"Keyed": [("I", 1, "a")]})
        assert len(rows(engine, "DEQUEUE FROM q")) == 1


class TestConsume:
    def test_messages_come_until_none_does(self, world: Queues, engine: Engine) -> None:
        world.commit({"Keyed": [("I", 1, "a"), ("U", 1, "b")], "Few": [("D", 1, "x"), ("I", 2, "y")]})
        with engine.consume("q", timeout=0.1) as messages:
            found = []
            for message in messages:
                found.append((message.query, message.marker, message.key, message.new, message.old))
                assert message.ack()
                assert not message.ack()
        few = ("Few", "I", {"k": 2}, {"k": 2, "v": "y0"}, None)  # the query that was created last
        insert = ("Keyed", "I", {"k": 1}, {"k": 1, "v": "a0"}, None)
        assert found == [insert, ("Keyed", "U", {"k": 1}, {"k": 1, "v": "b1"}, {"k": 1, "v": "b0"}), few]
        assert [*engine.consume("q", timeout=0.0)] == []
        assert len([*engine.consume("q", "another", timeout=0.0, batch=9)]) == 3

    def test_what_was_not_looked_at_comes_again_at_once(self, world: Queues, engine: Engine) -> None:
        world.commit({"Keyed": [("I", n, "a") for n in range(5)]})
        with engine.consume("q", batch=5) as messages:
            next(messages).ack()
        found = [*engine.consume("q", timeout=0.0, batch=9)]
        assert [(each.new["k"], each.attempt) for each in found if each.new] == [(n, 1) for n in range(1, 5)]

    def test_what_stands_behind_a_message_that_comes_again_comes_after_it(
        self, world: Queues, engine: Engine
    ) -> None:
        world.commit({"Keyed": [("I", 1, "a"), ("I", 2, "b"), ("U", 1, "c"), ("U", 1, "d")]})
        seen = []
        with engine.consume("q", timeout=0.0, batch=9) as messages:
            for message in messages:
                seen.append(
                    (message.key["k"] if message.key else None, message.given.sequence, message.attempt)
                )
                if message.given.sequence == 3 and message.attempt == 1:
                    assert message.reject(requeue=True)
                else:
                    assert message.ack()
        assert seen == [(1, 1, 1), (2, 2, 1), (1, 3, 1), (1, 3, 2), (1, 4, 1)]

    def test_ack_upto_ends_what_this_consumer_has_before_it(self, world: Queues, engine: Engine) -> None:
        world.commit({"Keyed": [("I", n, "a") for n in range(4)]})
        with engine.consume("q", batch=1) as other, engine.consume("q", batch=3) as messages:
            first = next(other)
            found = [next(messages) for _ in range(3)]
            assert found[1].ack(upto=True)
            assert [each.ack() for each in (first, *found)] == [True, False, False, True]
            assert not found[1].ack(upto=True)

    def test_closing_ends_it(self, world: Queues, opened: Callable[..., Engine]) -> None:
        engine = opened()
        waiting = engine.consume("q")
        threading.Timer(0.3, engine.close).start()
        assert [*waiting] == []

    def test_a_queue_that_is_dropped_ends_with_an_error(self, world: Queues, engine: Engine) -> None:
        waiting = engine.consume("q")
        state = world.catalog.state

        def drop() -> None:
            from dataclasses import replace

            queries = {name: replace(query, destinations=()) for name, query in state.queries.items()}
            with world.catalog.write() as unit:
                unit.set_state(replace(world.catalog.state, queries=queries, destinations={}))

        threading.Timer(0.3, drop).start()
        with pytest.raises(CatalogError, match="there is no queue q"):
            next(waiting)

    def test_time_brings_messages_back_and_then_aside(
        self, warehouse: Path, database_url: str | None
    ) -> None:
        world = Queues(warehouse, database_url, visibility="200 milliseconds", max_attempts="2")
        world.commit({"Keyed": [("I", 1, "a"), ("U", 1, "b")]})
        world.catalog.close()
        with cq_engine.connect(warehouse, catalog=database_url, scheduler=False) as engine:
            with engine.consume("q", timeout=3.0) as messages:
                seen = []
                for message in messages:
                    seen.append((message.given.sequence, message.attempt))
                    if message.given.sequence == 2:
                        message.ack()
                        break
                    time.sleep(0.3)
            assert seen == [(1, 1), (1, 2), (2, 1)]
            (row,) = engine.catalog.changes(engine.catalog.state.tables["q_dead"].storage.id, 1, 99)
            (letter,) = engine.catalog.inline(row).to_pylist()
            assert (letter["sequence"], letter["attempts"]) == (1, 2)
            assert letter["error"] == "given 2 times, and not acknowledged within 0.2 seconds"


class TestLooking:
    """SHOW, DESCRIBE, ALTER and DROP, in the process that has the duties."""

    @pytest.fixture
    def engine(self, warehouse: Path, database_url: str | None) -> Iterator[Engine]:
        world = Queues(warehouse, database_url)
        for n in range(4):
            world.commit({"Keyed": [("I", n, "a")], "Few": [("D", n, "no")]})
        world.catalog.close()
        clock = ManualClock(datetime(2026, 1, 1, 0, 10, tzinfo=timezone.utc))
        with cq_engine.connect(warehouse, catalog=database_url, scheduler=False, clock=clock) as opened:
            yield opened

    def shown(self, engine: Engine, query: str) -> tuple[Any, ...]:
        (row,) = [row for row in rows(engine, "SHOW DESTINATIONS") if row["query"] == query]
        return tuple(
            row[n] for n in ("type", "state", "delivered", "lag_versions", "lag_seconds", "rows", "dead")
        )

    def test_lag_is_that_of_the_last_group(self, engine: Engine) -> None:
        assert self.shown(engine, "Keyed") == ("queue", "ACTIVE", 0, 4, 540.0, 0, 0)
        first, second = rows(engine, "DEQUEUE 2 FROM q GROUP 'a'")
        assert self.shown(engine, "Keyed")[2:4] == (0, 4), "in flight is not done"
        engine.execute(f"ACK q GROUP 'a' UP TO {second['message_id']}")
        assert self.shown(engine, "Keyed") == ("queue", "ACTIVE", 2, 2, 420.0, 2, 0)
        assert rows(engine, "DEQUEUE FROM q GROUP 'b'")[0]["message_id"] == first["message_id"]
        assert self.shown(engine, "Keyed")[2:4] == (0, 4)
        facts = [row["value"] for row in rows(engine, "DESCRIBE DESTINATION q") if row["property"] == "group"]
        assert facts == [
            "a, acknowledged 2, in flight 0, to be given again 0",
            "b, acknowledged 0, in flight 1, to be given again 0",
        ]

    def test_what_is_no_message_is_no_lag(self, engine: Engine) -> None:
        assert self.shown(engine, "Few")[3] == 4
        found = [*engine.consume("q", timeout=0.0, batch=9)]
        assert len(found) == 4
        assert all(each.ack() for each in found)
        assert self.shown(engine, "Few")[2:5] == (4, 0, 0.0)

    def test_pause_and_resume(self, engine: Engine) -> None:
        engine.execute("ALTER DESTINATION q PAUSE")
        assert rows(engine, "DEQUEUE FROM q") == []
        assert self.shown(engine, "Keyed")[1] == "PAUSED"
        engine.execute("ALTER DESTINATION q RESUME")
        assert len(rows(engine, "DEQUEUE FROM q")) == 1

    def test_replay_and_skip(self, engine: Engine) -> None:
        found = rows(engine, "DEQUEUE 9 FROM q")
        engine.execute(f"ACK q UP TO {found[2]['message_id']}")
        engine.execute("ALTER DESTINATION q REPLAY FOR keyed FROM VERSION 1")
        versions = [row["commit_version"] for row in rows(engine, "DEQUEUE 9 FROM q")]
        assert versions == [2, 3, 4], "what was in flight, too"
        engine.execute("ALTER DESTINATION q SKIP FOR keyed TO VERSION 3")
        assert [row["commit_version"] for row in rows(engine, "DEQUEUE 9 FROM q GROUP 'new'")] == [4]
        with pytest.raises(CQError, match="there are no later messages"):
            engine.execute("ALTER DESTINATION q SKIP FOR keyed TO VERSION 9")

    def test_a_group_that_was_a_mistake(self, engine: Engine) -> None:
        """It is the one that is furthest behind, until it is dropped, and begins anew where it is asked for again."""
        found = rows(engine, "DEQUEUE 9 FROM q")
        engine.execute(f"ACK q UP TO {found[-1]['message_id']}")
        taken = engine.consume("q", group="biling", timeout=0.0)
        message = next(taken)
        lag = self.shown(engine, "Keyed")[3]
        assert lag > 0
        for group, said in {"biling": "dropped; messages in flight: 1", "default": "dropped"}.items():
            with pytest.raises(CQError, match=f"has no group '{group}s'") as raised:
                engine.execute(f"ALTER DESTINATION q DROP GROUP '{group}s'")
            assert group in raised.value.hint
            result = engine.execute(f"ALTER DESTINATION q DROP GROUP '{group}'")
            assert result.message == f"group '{group}' of q {said}"
            if group == "biling":
                assert self.shown(engine, "Keyed")[3] == 0
        assert not message.ack()
        taken.close()
        again = rows(engine, "DEQUEUE 9 FROM q")
        assert [(row["message_id"], row["attempt"]) for row in again] == [
            (row["message_id"], 1) for row in found
        ]
        engine.execute("CREATE DESTINATION other TYPE callback")
        with pytest.raises(CQError, match="other has no groups"):
            engine.execute("ALTER DESTINATION other DROP GROUP 'default'")

    def test_dropped_it_leaves_nothing(self, engine: Engine) -> None:
        rows(engine, "DEQUEUE 2 FROM q")
        engine.execute("DROP DESTINATION q CASCADE")
        assert states(engine.catalog) == 0
        assert "q_dead" in engine.catalog.state.tables

    def test_nor_does_a_query(self, engine: Engine) -> None:
        rows(engine, "DEQUEUE 9 FROM q")
        engine.execute("ALTER CONTINUOUS QUERY keyed SET NO DESTINATION")
        assert rows(engine, "DEQUEUE 9 FROM q GROUP 'new'") == []
        engine.execute("DROP CONTINUOUS QUERY few")
        engine.execute("DROP CONTINUOUS QUERY bag")
        assert states(engine.catalog) == 0

    def test_retention_is_the_queues_own(self, engine: Engine) -> None:
        engine.execute("ALTER DESTINATION q SET WITH (retention = '8 minutes')")
        engine.execute("VACUUM keyed RETAIN 0 MINUTES")
        found = rows(engine, "DEQUEUE 9 FROM q")
        assert [row["commit_version"] for row in found] == [3, 4], "from what was committed 8 minutes ago"
        engine.clock.set(engine.now + timedelta(hours=1))  # type: ignore[attr-defined]
        engine.execute("VACUUM keyed RETAIN 0 MINUTES")
        assert engine.execute(f"ACK q UP TO {found[0]['message_id']}").rowcount == 1
        assert rows(engine, "DEQUEUE 9 FROM q GROUP 'late'") == []

    def test_options_are_checked(self, engine: Engine) -> None:
        for option in ("visibility = 'soon'", "retention = '3'", "max_attempts = 0", "backoff = '1 second'"):
            with pytest.raises(CQError, match=r"is not possible|there is no option"):
                engine.execute(f"CREATE DESTINATION other TYPE queue WITH ({option})")
        engine.execute("CREATE DESTINATION other TYPE queue WITH (retention = 'forever')")
        assert "other_dead" in engine.catalog.state.tables


def states(catalog: Catalog) -> int:
    """Rows about consumers."""
    from cq_engine.catalog import queues

    with catalog.reading() as connection:
        return sum(len(connection.execute(table.select()).all()) for table in queues.TABLES)


WORKER = """
import sys, time, cq_engine
warehouse, url, mode = sys.argv[1:4]
engine = cq_engine.connect(warehouse, catalog=url or None, scheduler=False, duties=False)
print("ready", flush=True)
sys.stdin.readline()
for message in engine.consume("q", group="work", timeout=3.0, batch=3):
    print(message.id, message.new["k"], message.attempt, time.time(), flush=True)
    if mode == "hangs":
        time.sleep(60)
    message.ack()
    print("done", message.id, flush=True)
engine.close()
"""


def test_processes_share_the_work_and_one_may_die(warehouse: Path, database_url: str | None) -> None:
    world = Queues(warehouse, database_url, visibility="2 seconds")
    for n in range(20):
        world.commit({"Keyed": [("I", k, f"{n}") for k in range(3)]})
    world.catalog.close()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(warehouse), database_url or "", mode],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for mode in ("hangs", "works", "works")
    ]  # fmt: skip
    try:
        assert all(each.stdout is not None and each.stdout.readline() == "ready\n" for each in started)
        hangs = started[0]
        assert hangs.stdin is not None
        assert hangs.stdout is not None
        hangs.stdin.write("\n")
        hangs.stdin.flush()
        taken = hangs.stdout.readline().split()[0]
        hangs.kill()
        for each in started[1:]:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        said = [each.communicate(timeout=120)[0].splitlines() for each in started[1:]]
    finally:
        for each in started:
            with suppress(OSError):
                each.kill()
            each.communicate()
    lines = sorted(
        (line.split() for some in said for line in some if "done" not in line),
        key=lambda line: float(line[3]),
    )
    assert len(lines) == 60 == len({line[0] for line in lines}), "each once, since only one process has died"
    for k in ("0", "1", "2"):
        ids = [line[0] for line in lines if line[1] == k]
        assert ids == sorted(ids)
    assert {line[0]: line[2] for line in lines}[taken] == "2"
