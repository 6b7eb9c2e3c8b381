"""Topics of Kafka as sources, against a model of who writes to them; the broker is the mock cluster that librdkafka has."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cq_engine
from cq_engine import Engine
from cq_engine.core import faults
from cq_engine.core.limits import Limits
from cq_engine.sources.topics.address import Address
from tests import brokers
from tests.brokers import Server, free_port

kafka = pytest.importorskip("confluent_kafka")

PARTITIONS = 4
BEGIN = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
LOW = Limits(pending_rows=20)
Row = tuple[Any, ...]


class Crash(BaseException):
    """In the place of a process that ends."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with brokers.kafka() as running:
        yield running


@pytest.fixture
def opened(opened: Callable[..., Engine]) -> Callable[[], Engine]:
    return partial(opened, LOW)


@pytest.fixture
def engine(opened: Callable[[], Engine]) -> Engine:
    return opened()


@dataclass
class Topic:
    """A topic with a name of its own, and who writes to it."""

    server: Server
    name: str
    number: int = 0
    producer: Any = field(init=False)

    def __post_init__(self) -> None:
        settings = {"bootstrap.servers": self.brokers, "log_level": 0, "linger.ms": 0}
        self.producer = kafka.Producer(settings)
        self.producer.list_topics(self.name, timeout=5)  # which makes it
        while self.name not in self.producer.list_topics(timeout=5).topics:
            time.sleep(0.01)

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def send(self, value: Any, key: Any = None, partition: int = 0) -> None:
        self.number += 1
        text, of = (
            each if each is None or isinstance(each, bytes) else json.dumps(each).encode()
            for each in (value, key)
        )
        self.producer.produce(self.name, text, of, partition, timestamp=BEGIN + 1000 * self.number)

    def flush(self) -> None:
        assert self.producer.flush(10) == 0


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> Topic:
    return Topic(server, f"t{abs(hash(request.node.nodeid))}")


def declare(
    engine: Engine, topic: Topic, columns: str, capture: str = "", kind: str = "kafka", options: str = ""
) -> None:
    engine.execute(f"CREATE TABLE t ({columns})")
    place = f"brokers = '{topic.brokers}', topic = '{topic.name}'"
    engine.execute(f"CREATE SOURCE events TYPE {kind} WITH ({place}{options})")
    engine.execute(f"CREATE CAPTURE c INTO t FROM events {capture or 'USING LOG'} ON DEMAND")


def here(engine: Engine, columns: str = "k, v", table: str = "t") -> list[Row]:
    return sorted(engine.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)


def write(dice: random.Random, topic: Topic, rows: dict[int, Any], log: list[Row], most: int) -> None:
    for _ in range(dice.randint(0, most)):
        k = dice.randint(0, 15)
        if k in rows and dice.random() < 0.3:
            topic.send(None, {"k": k}, k % PARTITIONS)
            del rows[k]
        else:
            rows[k] = dice.choice([None, "a", "ü", str(topic.number)])
            topic.send({"K": k, "v": rows[k], "more": 1}, {"k": k}, k % PARTITIONS)
            log.append((k, rows[k]))
    topic.flush()


def test_upserts_and_tombstones(engine: Engine, topic: Topic) -> None:
    dice, rows = random.Random(7), dict[int, Any]()
    declare(engine, topic, "k INT PRIMARY KEY, v STRING")
    for n in range(10):
        write(dice, topic, rows, [], 60 if n == 4 else 12)
        engine.refresh_capture("c")
        assert here(engine) == sorted(rows.items(), key=repr)
        assert engine.refresh_capture("c").commit_versions == ()
    moments = engine.execute("SELECT DISTINCT _commit_timestamp m FROM t CHANGES FROM VERSION 1").to_arrow()
    assert all(row["m"].timestamp() * 1000 % 1000 == 0 for row in moments.to_pylist())


POINTS = ["commit.begin", "commit.staged", "commit.before_catalog", "commit.after_catalog"]


@pytest.mark.parametrize("point", POINTS)
def test_every_message_once_whatever_is_killed(
    opened: Callable[[], Engine], topic: Topic, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, log, real = random.Random(5), list[Row](), faults.point
    engine = opened()
    declare(engine, topic, "k INT, v STRING")
    for n in range(1, 4):
        for _ in range(8):
            log.append((n, str(topic.number)))
            topic.send({"k": n, "v": str(topic.number)}, partition=dice.randrange(PARTITIONS))
        for _ in range(20 * n):
            log.append((n, None))
            topic.send({"k": n})
        topic.flush()
        left = [n]

        def crash(name: str, file: Path | None = None, left: list[int] = left) -> None:
            left[0] -= name == point
            if not left[0]:
                raise Crash
            real(name, file)

        monkeypatch.setattr(faults, "point", crash)
        with pytest.raises(Crash):
            engine.refresh_capture("c")
        monkeypatch.setattr(faults, "point", real)
        engine.close()
        engine = opened()
        engine.refresh_capture("c")
        assert here(engine) == sorted(log, key=repr)


def test_partitions_are_read_in_the_order_of_times(engine: Engine, topic: Topic) -> None:
    declare(engine, topic, "k INT PRIMARY KEY, v STRING")
    for n in range(60):
        topic.send({"k": 1, "v": str(n)}, partition=n * 7 % PARTITIONS)
    topic.flush()
    engine.refresh_capture("c")
    assert here(engine) == [(1, "59")]


def test_partitions_that_are_ahead_wait(
    engine: Engine, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq_engine.sources.topics.topic._PAUSED", 3)
    monkeypatch.setattr("cq_engine.sources.topics.topic._RESUMED", 2)
    monkeypatch.setattr("cq_engine.sources.topics.topic._AT_A_TIME", 2)
    declare(engine, topic, "k INT, v STRING")
    for n in range(40):
        topic.send({"k": n}, partition=n % PARTITIONS if n < 12 else 0)
    topic.flush()
    engine.refresh_capture("c")
    assert here(engine, "k") == sorted([(n,) for n in range(40)], key=repr)


@pytest.mark.parametrize(
    ("kind", "key", "wanted"),
    [
        ("STRING", b"12", "12"),
        ("STRING", b"a b", "a b"),
        ("STRING", b'"a"', "a"),
        ("STRING", b'{"k": "x"}', "x"),
        ("STRING", b'{"schema": {}, "payload": {"k": "x"}}', "x"),
        ("INT", b"12", 12),
        ("INT", b'{"k": 12}', 12),
    ],
)
def test_keys(engine: Engine, topic: Topic, kind: str, key: bytes, wanted: Any) -> None:
    declare(engine, topic, f"k {kind} PRIMARY KEY, v STRING")
    topic.send({"v": "x"}, key)
    topic.flush()
    engine.refresh_capture("c")
    assert here(engine) == [(wanted, "x")]
    topic.send(None, key)
    topic.flush()
    engine.refresh_capture("c")
    assert here(engine) == []


def test_from_now_on(engine: Engine, topic: Topic) -> None:
    topic.send({"k": 1})
    topic.flush()
    declare(engine, topic, "k INT, v STRING", "USING LOG WITH (initial = 'none')")
    engine.refresh_capture("c")
    topic.send({"k": 2})
    topic.flush()
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,)]


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        (b"{half", None, "it is no JSON"),
        (b"[1]", None, "it is no object"),
        (b"\xff", None, "it is no JSON"),
        ({"k": "x"}, None, "its k is 'x', which is no int"),
        ({"v": "x"}, None, "its k is NULL"),
        (None, None, "it has neither value nor key"),
        (None, b"\xff", "its key is no text"),
        (None, b"{}", "its k is NULL"),
    ],
)
def test_poison(engine: Engine, topic: Topic, value: Any, key: bytes | None, reason: str) -> None:
    declare(engine, topic, "k INT PRIMARY KEY, v STRING")
    topic.send({"k": 1, "v": "a"}, partition=2)
    topic.send(value, key, 2)
    topic.send({"k": 2, "v": "b"}, partition=2)
    topic.flush()
    with pytest.raises(cq_engine.SourceError, match=f"a message of topic {topic.name}") as error:
        engine.refresh_capture("c")
    assert f"partition 2, offset 1: {reason}" in error.value.detail
    engine.execute("ALTER CAPTURE c SET WITH (on_poison = 'dead_letter')")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == [(1, "a"), (2, "b")]
    (dead,) = engine.execute("SELECT partition, start, reason FROM c_dead").fetchall()
    assert dead[:2] == (2, 1)
    assert reason in dead[2]


def test_messages_that_are_gone_are_missed(engine: Engine, topic: Topic) -> None:
    topic.send({"k": 1})
    topic.flush()
    declare(engine, topic, "k INT, v STRING")
    engine.refresh_capture("c")
    for _ in range(12):  # the mock cluster keeps 5 MiB
        topic.send({"k": 2, "v": "x" * 900_000})
    topic.flush()
    with pytest.raises(cq_engine.SourceError, match="does not have messages any more"):
        engine.refresh_capture("c")
    assert engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]["state"] == "FAILED"
    assert here(engine, "k") == [(1,)]


def test_a_topic_that_was_made_again(engine: Engine, topic: Topic, server: Server) -> None:
    for _ in range(2):
        topic.send({"k": 1})
    topic.flush()
    declare(engine, topic, "k INT, v STRING")
    engine.refresh_capture("c")
    with ExitStack() as stack:
        other = Topic(stack.enter_context(brokers.kafka()), topic.name)
        other.send({"k": 2})
        other.flush()
        engine.execute(f"ALTER SOURCE events SET WITH (brokers = '{other.brokers}')")
        with pytest.raises(cq_engine.SourceError, match="is not the one that was read before"):
            engine.refresh_capture("c")
    another = Topic(server, f"{topic.name}x")
    engine.execute(f"ALTER SOURCE events SET WITH (brokers = '{topic.brokers}', topic = '{another.name}')")
    engine.execute("ALTER CAPTURE c RESUME")
    with pytest.raises(cq_engine.SourceError, match="when it was read before"):
        engine.refresh_capture("c")


def test_brokers_that_do_not_answer(engine: Engine, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_BROKERS", topic.brokers)
    engine.execute("CREATE TABLE t (k INT)")
    options = f"brokers = '${{CQ_BROKERS}}', topic = '{topic.name}', timeout = '1 second'"
    engine.execute(f"CREATE SOURCE events TYPE kafka WITH ({options})")
    engine.execute("CREATE CAPTURE c INTO t FROM events USING LOG ON DEMAND")
    topic.send({"k": 1})
    topic.flush()
    monkeypatch.setenv("CQ_BROKERS", f"127.0.0.1:{free_port()}")
    with pytest.raises(cq_engine.SourceUnavailableError, match="cannot be read"):
        engine.refresh_capture("c")
    monkeypatch.setenv("CQ_BROKERS", topic.brokers)
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,)]


def test_what_is_no_source_or_capture(engine: Engine, topic: Topic) -> None:
    at = f"brokers = '{topic.brokers}'"
    for given, said in (
        (f"kafka WITH ({at})", "needs the option topic"),
        ("kafka WITH (brokers = 'kafka://me:hush@host', topic = 't')", "has a password in it"),
        ("kafka WITH (brokers = 'host?ssl.key.password=hush', topic = 't')", r"has ssl\.key\.password in it"),
        (f"debezium WITH ({at})", "needs the option topic"),
        ("debezium", "needs the option path"),
        (f"debezium WITH (path = 'a', {at}, topic = 't')", "has no option brokers"),
    ):
        with pytest.raises(cq_engine.AnalysisError, match=said):
            engine.execute(f"CREATE SOURCE events TYPE {given}")
    with pytest.raises(cq_engine.SourceError, match="there is no topic gone"):
        engine.execute(f"CREATE SOURCE events TYPE kafka WITH ({at}, topic = 'gone')")
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
    engine.execute(f"CREATE SOURCE events TYPE kafka WITH ({at}, topic = '{topic.name}')")
    for capture, said in (
        ("TABLE 'x' USING LOG", "TABLE is not for"),
        ("(v) USING LOG", "does not fill the key column k"),
        ("WHERE 'k > 1' USING LOG", "WHERE is not for"),
        ("USING COPY", "is not for sources of type kafka"),
    ):
        with pytest.raises(cq_engine.AnalysisError, match=said):
            engine.execute(f"CREATE CAPTURE c INTO t FROM events {capture}")
    rows = engine.execute("ADVISE CAPTURE FROM events TABLE 't'").to_arrow().to_pylist()
    assert [row["method"] for row in rows if row["possible"]] == ["LOG"]


def test_settings_keep_their_secrets() -> None:
    address = Address(
        "events", "kafka://me:a%2Fb@host:1?security.protocol=SASL_SSL&ssl.key.password=hush", "t", "g", 1
    )
    settings = address.settings()
    assert (settings["sasl.username"], settings["sasl.password"]) == ("me", "a/b")
    assert (settings["security.protocol"], settings["bootstrap.servers"]) == ("SASL_SSL", "host:1")
    assert address.without_secrets("a/b a%2Fb hush") == "*** *** ***"
    assert address.shown == "topic t at host:1"


# ---------------------------------------------------------------- Debezium


def test_envelopes_over_a_topic(engine: Engine, topic: Topic) -> None:
    dice, rows = random.Random(3), dict[int, str]()
    declare(
        engine, topic, "k INT PRIMARY KEY, v STRING",
        "TABLE 'shop.orders' USING LOG WITH (on_poison = 'dead_letter')", "debezium", ", group = 'w'",
    )  # fmt: skip
    states: list[dict[int, str]] = [{}]
    for n in range(30):
        for _ in range(dice.randint(1, 3)):
            k, old = dice.randint(0, 5), dict(rows)
            before = {"k": k, "v": old[k]} if k in old else None
            source = {"db": "shop", "table": "orders", "txId": n, "ts_ms": BEGIN + n}
            if before is not None and dice.random() < 0.3:
                del rows[k]
                topic.send({"op": "d", "before": before, "after": None, "source": source}, {"k": k})
                topic.send(None, {"k": k})
            else:
                rows[k] = str(topic.number)
                op = "c" if before is None else "u"
                topic.send(
                    {"op": op, "before": before, "after": {"k": k, "v": rows[k]}, "source": source}, {"k": k}
                )
        states.append(dict(rows))
        if n == 20:
            topic.send(b"{")
        if n % 7 == 0 or n == 29:
            topic.flush()
            engine.refresh_capture("c")
            assert here(engine) == sorted(rows.items(), key=repr)
    for version in range(1, engine.catalog.newest_version + 1):
        found = dict(engine.execute(f"SELECT k, v FROM t VERSION AS OF {version}").fetchall())
        assert found in states
    assert here(engine, "file, envelope", "c_dead") == [(f"{topic.name}/0", "{")]
