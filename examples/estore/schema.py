"""The shop's tables, how many rows they have at a scale, and the queries that watch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

import cq_engine

__all__ = ["ARROW", "LINES_PER_ORDER", "QUERIES", "TABLES", "Sizes", "create_queries"]

LINES_PER_ORDER = 10

TABLES: dict[str, str] = {
    "customer": """
        CREATE TABLE customer (
          cid     BIGINT NOT NULL,
          name    STRING,
          region  STRING,
          segment STRING,
          PRIMARY KEY (cid)
        ) CLUSTER BY (cid)""",
    "orders": """
        CREATE TABLE orders (
          oid   BIGINT NOT NULL,
          cid   BIGINT NOT NULL,
          odate DATE,
          paid  DECIMAL(12,2),
          PRIMARY KEY (oid),
          FOREIGN KEY (cid) REFERENCES customer (cid) NOT ENFORCED RELY
        ) CLUSTER BY (oid)""",
    "orderline": """
        CREATE TABLE orderline (
          oid   BIGINT NOT NULL,
          line  INT NOT NULL,
          item  STRING,
          price DECIMAL(10,2),
          qty   INT,
          PRIMARY KEY (oid, line),
          FOREIGN KEY (oid) REFERENCES orders (oid) NOT ENFORCED RELY
        ) CLUSTER BY (oid, line)""",
}
"""CREATE TABLE per table, a referenced table before the one that refers to it."""

ARROW: dict[str, pa.Schema] = {
    "customer": pa.schema(
        {"cid": pa.int64(), "name": pa.string(), "region": pa.string(), "segment": pa.string()}.items()
    ),
    "orders": pa.schema(
        {"oid": pa.int64(), "cid": pa.int64(), "odate": pa.date32(), "paid": pa.decimal128(12, 2)}.items()
    ),
    "orderline": pa.schema(
        {
            "oid": pa.int64(),
            "line": pa.int32(),
            "item": pa.string(),
            "price": pa.decimal128(10, 2),
            "qty": pa.int32(),
        }.items()
    ),
}

QUERIES: dict[str, str] = {
    # A selective join: one item in one region, about one line in sixty.
    "northern_shoes": """
        SELECT ol.oid, ol.line, c.name, o.odate, ol.price, ol.qty
        FROM orderline ol
        JOIN orders o ON ol.oid = o.oid
        JOIN customer c ON o.cid = c.cid
        WHERE ol.item = 'shoes' AND c.region = 'north'""",
    # An aggregate over the join: customers whose orders come to more than 45 000.
    "big_spenders": """
        SELECT c.cid, c.segment, sum(ol.price * ol.qty) AS total, count(*) AS lines
        FROM orderline ol
        JOIN orders o ON ol.oid = o.oid
        JOIN customer c ON o.cid = c.cid
        GROUP BY c.cid, c.segment
        HAVING sum(ol.price * ol.qty) > 45000""",
    # Negative balance: orders that cost more than was paid, because prices and quantities were changed afterwards.
    "negative_balance": """
        SELECT o.oid, o.paid, o.paid - sum(ol.price * ol.qty) AS balance
        FROM orders o
        JOIN orderline ol ON o.oid = ol.oid
        GROUP BY o.oid, o.paid
        HAVING o.paid - sum(ol.price * ol.qty) < 0""",
}
"""The defining queries; one of each shape that the paper measures."""


@dataclass(frozen=True)
class Sizes:
    """How many rows the bulk load has at `scale`."""

    scale: float

    @property
    def customers(self) -> int:
        return max(10, round(100_000 * self.scale))

    @property
    def orders(self) -> int:
        return max(100, round(1_000_000 * self.scale))

    @property
    def lines(self) -> int:
        return self.orders * LINES_PER_ORDER

    def rows(self) -> dict[str, int]:
        """Rows per table."""
        return {"customer": self.customers, "orders": self.orders, "orderline": self.lines}


def create_queries(engine: cq_engine.Engine, queries: Mapping[str, str] = QUERIES) -> None:
    """Creates queries by their names: transactional, and refreshed only when asked to."""
    for name, query in queries.items():
        engine.execute(f"CREATE CONTINUOUS QUERY {name} COMPUTE TRANSACTIONAL DELTA ON DEMAND AS {query}")
