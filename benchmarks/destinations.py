"""How many delta rows a second each type of destination takes, beside a plain loop with the same client library.

    python benchmarks/destinations.py                                     # 100 000 deltas of one commit, each type
    python benchmarks/destinations.py --kinds table delta --rows 20000
    python benchmarks/destinations.py --url redis=redis://127.0.0.1:6379/0 --url postgresql=postgresql://cq@127.0.0.1/bench
    python benchmarks/destinations.py --kinds --url kafka=mock --url mariadb=mariadb://root@127.0.0.1/bench

A query over one table has a delta for each row; its destination is paused until the refresh is done, so that what is timed is
the delivery: from RESUME until the destination has everything. The plain loop has the rows in Arrow and writes them in the
same form, in batches of 10 000, without a log, a cursor or an answer to a crash; `over` is its time divided by ours, and
above 0.5 means that we take less than twice as long. `queue` is timed from the first to the last acknowledged message,
taken 500 at a time, and has no plain loop. Brokers, PostgreSQL and MariaDB are measured where `--url` names them; `kafka=mock` is the
mock cluster of librdkafka, in the same process. Of NATS a stream has to keep `sink` and `plain`, of RabbitMQ there has to be the
exchange `amq.fanout` with a queue. One JSON line per figure goes to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

import pyarrow as pa
from deltalake import write_deltalake
from frame import Figure, arguments, bars, run
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

import cq_engine

NAME = "destinations"
OWN = ("table", "delta", "sqlite", "callback", "webhook", "queue")
BLOCK = 10_000
PATIENCE = 900.0


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    urls = dict(each.split("=", 1) for each in options.url)
    options.scales = [0.0]

    def measure(directory: Path, _: float) -> Iterator[Figure]:
        with webhook_server() as hook:
            os.environ["CQ_BENCH_HOOK"] = hook
            for kind in [*options.kinds, *urls]:
                for number in range(options.rounds):
                    place = directory / f"{kind}-{number}"
                    place.mkdir()
                    with cluster(urls.get(kind, "")) as url:
                        yield one(place, kind, url, options.rows, spark)

    return run(NAME, options, measure, conclude=conclude, draw=plot)


def one(directory: Path, kind: str, url: str, rows: int, spark: SparkSession | None) -> Figure:
    """One delivery of one commit, and the plain loop."""
    wanted = rows_of(rows)
    callback_rows = [0]
    with cq_engine.connect(directory / "warehouse", spark=spark) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, name STRING, amount DOUBLE)")

        @engine.callback("sink")
        def received(batch: cq_engine.DeltaBatch) -> None:
            callback_rows[0] += len(list(batch))

        os.environ["CQ_BENCH_URL"] = url
        engine.execute(f"CREATE DESTINATION sink TYPE {declaration(kind, directory)}")
        engine.execute(
            "CREATE CONTINUOUS QUERY q COMPUTE ON DEMAND DESTINATION sink AS SELECT id, name, amount FROM t"
        )
        engine.execute("ALTER DESTINATION sink PAUSE")
        with engine.transaction() as tx:
            tx.insert("t", wanted)
        engine.refresh("q")
        begin = time.perf_counter()
        engine.execute("ALTER DESTINATION sink RESUME")
        if kind == "queue":
            begin = time.perf_counter()
            taken = take(engine, rows)
            assert taken == rows, taken
        else:
            engine.drain(timeout=PATIENCE)
        ours = time.perf_counter() - begin
        if kind == "callback":
            assert callback_rows[0] == rows
    plain = by_hand(kind, url, directory)
    figure: Figure = {
        "figure": "delivery",
        "of": kind,
        "rows": rows,
        "seconds": round(ours, 3),
        "rows_per_second": round(rows / ours),
    }
    if plain is not None:
        begin = time.perf_counter()
        plain([wanted.slice(start, BLOCK) for start in range(0, rows, BLOCK)])
        figure["plain_seconds"] = round(time.perf_counter() - begin, 3)
        figure["over"] = round(figure["plain_seconds"] / ours, 3)
    return figure


def rows_of(count: int) -> pa.Table:
    """The table's rows."""
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "name": pa.array([f"name of row {n}" for n in range(count)]),
            "amount": pa.array([n / 7 for n in range(count)]),
        }
    )


def declaration(kind: str, directory: Path) -> str:
    """The type and its options."""
    return {
        "table": "table",
        "callback": "callback",
        "queue": "queue",
        "delta": f"delta WITH (path = '{directory}/lake')",
        "sqlite": f"database WITH (url = 'sqlite:///{directory}/sink.db', table = 'sink')",
        "postgresql": "database WITH (url = '${CQ_BENCH_URL}', table = 'sink')",
        "mariadb": "database WITH (url = '${CQ_BENCH_URL}', table = 'sink')",
        "kafka": "kafka WITH (url = '${CQ_BENCH_URL}', topic = 'sink')",
        "kafka_transactional": "kafka WITH (url = '${CQ_BENCH_URL}', topic = 'sink', transactional = 'true')",
        "nats": "nats WITH (url = '${CQ_BENCH_URL}', subject = 'sink')",
        "rabbitmq": "rabbitmq WITH (url = '${CQ_BENCH_URL}', exchange = 'amq.fanout')",
        "webhook": "webhook WITH (url = '${CQ_BENCH_HOOK}')",
        "redis": "redis WITH (url = '${CQ_BENCH_URL}', stream = 'sink')",
    }[kind]


def take(engine: cq_engine.Engine, rows: int) -> int:
    """Consumes a queue; how many messages came."""
    count = 0
    with engine.consume("sink", timeout=60.0, batch=500) as messages:
        for message in messages:
            count += 1
            if count % 500 == 0 or count == rows:
                message.ack(upto=True)
            if count == rows:
                break
    return count


# ---------------------------------------------------------------- the same by hand


Blocks = Sequence[pa.Table]


def by_hand(kind: str, url: str, directory: Path) -> Callable[[Blocks], None] | None:
    """A loop over blocks of rows that writes them with the client library and nothing else."""
    return {
        "delta": partial(_delta, str(directory / "plain")),
        "sqlite": partial(_sqlite, str(directory / "plain.db")),
        "postgresql": partial(_postgresql, url),
        "callback": _callback,
        "webhook": partial(_webhook, os.environ["CQ_BENCH_HOOK"]),
        "redis": partial(_redis, url),
        "mariadb": partial(_mariadb, url),
        "kafka": partial(_kafka, url),
        "kafka_transactional": partial(_kafka, url),
        "nats": partial(_nats, url),
        "rabbitmq": partial(_rabbitmq, url),
    }.get(kind)


def _delta(path: str, blocks: Blocks) -> None:
    write_deltalake(path, pa.concat_tables(blocks))


def _sqlite(path: str, blocks: Blocks) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE sink (id INT, name TEXT, amount REAL)")
        for block in blocks:
            rows = zip(*(column.to_pylist() for column in block.columns))
            connection.executemany("INSERT INTO sink VALUES (?, ?, ?)", rows)


def _postgresql(url: str, blocks: Blocks) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS plain (id INT, name TEXT, amount DOUBLE PRECISION)")
        with connection.cursor().copy("COPY plain FROM STDIN") as copy:
            for block in blocks:
                for row in zip(*(column.to_pylist() for column in block.columns)):
                    copy.write_row(row)


def _mariadb(url: str, blocks: Blocks) -> None:
    import pymysql

    place = make_url(url)
    connection = pymysql.connect(
        host=place.host, port=place.port or 3306, user=place.username, database=place.database
    )
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS plain (id INT, name LONGTEXT, amount DOUBLE)")
        for block in blocks:
            rows = list(zip(*(column.to_pylist() for column in block.columns)))
            cursor.executemany("INSERT INTO plain VALUES (%s, %s, %s)", rows)
        connection.commit()


def _delta_of(row: dict[str, object]) -> str:
    return json.dumps({"op": "c", "after": row})


def _headers_of(key: str) -> dict[str, str]:
    """As many, and about as long, as those that our messages have."""
    names = ("ce_specversion", "ce_source", "ce_time", "ce_type", "cq_query", "cq_version", "cq_time", "type")
    common = dict.fromkeys(names, "about as long as these are")
    return {"ce_id": f"0123456789abcdef/1/2/{key}", "ce_partitionkey": key, **common}


def _kafka(url: str, blocks: Blocks) -> None:
    import confluent_kafka

    settings = {"bootstrap.servers": url.removeprefix("kafka://"), "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    for block in blocks:
        for row in block.to_pylist():
            key = str(row["id"])
            producer.produce("plain", _delta_of(row), key, headers=list(_headers_of(key).items()))
        assert producer.flush(60) == 0


def _nats(url: str, blocks: Blocks) -> None:
    import nats

    async def send() -> None:
        client = await nats.connect(url)
        stream = client.jetstream()
        for block in blocks:
            for some in block.to_batches(max_chunksize=500):
                sent = [(_delta_of(row).encode(), _headers_of(str(row["id"]))) for row in some.to_pylist()]
                await asyncio.gather(*(stream.publish("plain", body, headers=more) for body, more in sent))
        await client.close()

    asyncio.run(send())


def _rabbitmq(url: str, blocks: Blocks) -> None:
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as client:
        channel = client.channel()
        for block in blocks:
            for row in block.to_pylist():
                headers = pika.BasicProperties(headers=_headers_of(str(row["id"])))
                channel.basic_publish("amq.fanout", "plain", _delta_of(row).encode(), headers)


def _callback(blocks: Blocks) -> None:
    count = 0
    for block in blocks:
        count += len(block.to_pylist())


def _webhook(url: str, blocks: Blocks) -> None:
    host = url.removeprefix("http://").rstrip("/")
    for block in blocks:
        connection = http.client.HTTPConnection(host)
        content = json.dumps(
            {"deltas": [{"op": "c", "before": None, "after": row} for row in block.to_pylist()]}
        )
        connection.request("POST", "/", content.encode(), {"Content-Type": "application/json"})
        assert connection.getresponse().status == 204
        connection.close()


def _redis(url: str, blocks: Blocks) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        for block in blocks:
            with client.pipeline(transaction=True) as pipeline:
                for row in block.to_pylist():
                    key = str(row["id"])
                    pipeline.xadd("plain", {"key": key, "body": _delta_of(row), **_headers_of(key)})
                pipeline.execute()


@contextmanager
def cluster(url: str) -> Iterator[str]:
    """`url`, or where it is `mock` that of a mock cluster with the topics sink and plain."""
    if url != "mock":
        yield url
        return
    import confluent_kafka

    owner = confluent_kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
    for topic in ("sink", "plain"):
        while topic not in owner.list_topics(timeout=30).topics:
            owner.list_topics(topic, timeout=30)  # which makes it
    (broker,) = owner.list_topics(timeout=30).brokers.values()
    yield f"kafka://127.0.0.1:{broker.port}"


@contextmanager
def webhook_server() -> Iterator[str]:
    """A server that takes everything; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


# ---------------------------------------------------------------- what comes of it


def conclude(figures: Sequence[Figure]) -> Iterator[Figure]:
    """The median of the rounds, by type."""
    for kind in dict.fromkeys(f["of"] for f in figures if f["figure"] == "delivery"):
        rounds = [f for f in figures if f["figure"] == "delivery" and f["of"] == kind]
        figure: Figure = {
            "figure": "rows per second",
            "of": kind,
            "rows_per_second": median(f["rows_per_second"] for f in rounds),
        }
        if "over" in rounds[0]:
            figure["ratio"] = median(f["over"] for f in rounds)
        yield figure


def plot(figures: Sequence[Figure], path: str) -> None:
    """Rows per second by type."""
    found = {f["of"]: f["rows_per_second"] for f in figures if f["figure"] == "rows per second"}
    bars(found, path, title="delta rows per second", xscale="log")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "", scales=(), rounds=3)
    parser.add_argument("--kinds", nargs="*", choices=OWN, default=list(OWN))
    parser.add_argument("--rows", type=int, default=100_000, help="deltas (default: 100 000)")
    parser.add_argument("--url", action="append", default=[], metavar="KIND=URL", help="of a server")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
