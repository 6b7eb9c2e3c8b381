"""Keys that hold: no refresh may find two rows with a derived key, and the delta law holds with it."""

from __future__ import annotations

import pytest

from tests.oracle.generate import History, TableSpec
from tests.oracle.plans import Plans
from tests.oracle.recorded import record
from tests.oracle.test_delta_rules import run

TABLES = (
    TableSpec("o", (("oid", "INT"), ("cust", "INT")), ("oid",)),
    TableSpec("l", (("lid", "INT"), ("oid", "INT"), ("n", "INT")), ("lid",)),
    TableSpec("t", (("id", "INT"), ("k", "BIGINT"), ("f", "DOUBLE")), ("id",)),
)
INITIAL = (
    "INSERT INTO o VALUES (1, 7), (2, NULL)",
    "INSERT INTO l VALUES (1, 1, 5), (2, 1, 6), (3, 9, 1)",
    "INSERT INTO t VALUES (1, 9007199254740992, 0.0), (2, 5, 1.5)",
)
TRANSACTIONS = (
    ("INSERT INTO o VALUES (3, 7)", "INSERT INTO l VALUES (4, 2, 1), (5, 3, NULL)"),
    ("INSERT INTO t VALUES (3, 9007199254740993, CAST('-0.0' AS DOUBLE))",),
    ("DELETE FROM l WHERE oid = 1", "UPDATE o SET cust = 8 WHERE oid = 1"),
    ("INSERT INTO o VALUES (9, NULL)", "UPDATE t SET k = 9007199254740993 WHERE id = 1"),
    ("DELETE FROM o WHERE oid = 3", "UPDATE l SET oid = NULL WHERE oid = 3"),
    ("DELETE FROM t WHERE id = 1", "UPDATE l SET n = n + 1"),
)
QUERIES = (
    # A LEFT JOIN keeps the key of the left side.
    ("SELECT o.oid, o.cust, sum(l.n) AS n FROM o LEFT JOIN l ON l.oid = o.oid GROUP BY o.oid, o.cust", ("oid",)),
    ("SELECT o.oid, o.cust, sum(l.n) AS n FROM l RIGHT JOIN o ON l.oid = o.oid GROUP BY o.oid, o.cust", ("oid",)),
    # Of the right side nothing is determined: a row without a match has NULL in its place.
    (
        "SELECT l.oid, o.cust, count(*) AS n FROM o LEFT JOIN l ON l.oid = o.oid GROUP BY l.oid, o.cust",
        ("oid", "cust"),
    ),
    (
        "SELECT x.five, o.cust, count(*) AS n FROM o LEFT JOIN (SELECT oid, 5 AS five FROM l) x ON x.oid = o.oid"  # noqa: ISC004
        " GROUP BY x.five, o.cust",
        ("five", "cust"),
    ),
    # A DOUBLE rounds two BIGINTs to one.
    ("SELECT id, k FROM t WHERE k = 9.007199254740992E15", ("id",)),
    ("SELECT DISTINCT k FROM t WHERE k = 9.007199254740992E15", ("k",)),
    ("SELECT DISTINCT k FROM t WHERE k = 9007199254740993", ()),
    # 0.0 and -0.0 are equal, their texts are not.
    ("SELECT DISTINCT f, CAST(f + 0.5 AS STRING) AS s FROM t", ("f", "s")),
    ("SELECT k, CAST(k AS STRING) AS s, count(*) AS n FROM t GROUP BY k, CAST(k AS STRING)", ("k",)),
)  # fmt: skip


@pytest.mark.parametrize(("query", "key"), QUERIES)
def test_a_derived_key_holds(query: str, key: tuple[str, ...]) -> None:
    history = History(TABLES, INITIAL, TRANSACTIONS, (query,), 0b101000)
    assert Plans(record(history)).compile(0).key == key
    assert not any(verdict.startswith("FULL") for verdict in run(history))
