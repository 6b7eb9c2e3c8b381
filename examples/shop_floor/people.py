"""Those around the warehouse: a shop that orders, people who pick, and a server that tells the customers."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cq_engine

__all__ = ["CUSTOMERS", "PRODUCTS", "Say", "Told", "order", "pick", "telling"]

CUSTOMERS = ("Ann", "Bob", "Cleo", "Dan")
PRODUCTS = {"bolt": "bolts", "gear": "gears", "lamp": "lamps"}
Say = Callable[[str], None]


def order(engine: cq_engine.Engine, count: int, say: Say, chance: random.Random, pause: float) -> None:
    """`count` orders, one commit each, with so many seconds in between."""
    for number in range(1, count + 1):
        row = (number, chance.choice(CUSTOMERS), chance.choice(list(PRODUCTS)), chance.randint(2, 9))
        with engine.transaction(retries=20) as tx:
            tx.insert("orders", [row])
        say(f"[cyan]shop[/]       order {number}: {row[1]} wants {row[3]} {PRODUCTS[row[2]]}")
        time.sleep(pause)


def pick(engine: cq_engine.Engine, who: str, messages: Iterable[cq_engine.Message], say: Say) -> None:
    """Picks what the messages of the queue say, until it is closed. A message that comes again is known by its order."""
    for message in messages:
        wanted = message.new or {}
        with engine.transaction(retries=20) as tx:
            tx.execute(
                f"MERGE INTO picked USING (SELECT {wanted['order_id']} AS order_id) AS w "
                "ON picked.order_id = w.order_id WHEN NOT MATCHED THEN INSERT *"
            )
        message.ack()
        say(f"[yellow]{who:10}[/] picked {wanted['amount']} {wanted['name']} for order {wanted['order_id']}")


class Told:
    """What the customers were told: by order, how often. A webhook may send a batch again, with the same key."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._keys: set[str] = set()
        self._lock = threading.Lock()
        self.orders: Counter[int] = Counter()

    def receive(self, key: str, body: dict[str, object]) -> None:
        """One batch."""
        with self._lock:
            if key in self._keys:
                return
            self._keys.add(key)
            for delta in body["deltas"]:  # type: ignore[attr-defined]
                row = delta["after"]
                self.orders[row["id"]] += 1
                self._say(
                    f"[green]webhook[/]    {row['customer']}: your {row['amount']} {row['name']} are on the way"
                )


@contextmanager
def telling(told: Told) -> Iterator[str]:
    """A server on this machine that takes batches; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            told.receive(self.headers["Idempotency-Key"], json.loads(content))
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
