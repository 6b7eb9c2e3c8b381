"""Statements one by one: what they change, what they say, what they refuse."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cq_engine.core.errors import AnalysisError, ConstraintError, CQError, CQSyntaxError
from tests.transactions.harness import Small, execute


@pytest.fixture
def stock(small: Small) -> Small:
    small.create("CREATE TABLE t (k INT PRIMARY KEY, v STRING, n DECIMAL(10,2))")
    small.run("INSERT INTO t VALUES (1, 'a', 1.5), (2, 'b', NULL), (3, NULL, -2)")
    return small


def test_insert_literals(stock: Small) -> None:
    assert stock.rows("SELECT * FROM t") == [
        (1, "a", Decimal("1.50")),
        (2, "b", None),
        (3, None, Decimal("-2.00")),
    ]


def test_insert_forms(stock: Small) -> None:
    stock.run("INSERT INTO t (v, k) VALUES ('x', 10 + 1)")
    stock.run("INSERT INTO t BY NAME SELECT 'y' AS v, 12 AS k")
    stock.run("INSERT INTO t SELECT k + 100, upper(v), n FROM t WHERE k = 1")
    stock.run("WITH s AS (SELECT 14 AS k) INSERT INTO t (k) SELECT k FROM s")
    stock.run("INSERT INTO t VALUES (15, DEFAULT, 1 + 1)")
    assert stock.rows("SELECT k, v, n FROM t WHERE k > 3") == [
        (101, "A", Decimal("1.50")),
        (11, "x", None),
        (12, "y", None),
        (14, None, None),
        (15, None, Decimal("2.00")),
    ]


def test_update(stock: Small) -> None:
    result = stock.run("UPDATE t AS x SET v = concat(x.v, '!'), n = (SELECT max(n) FROM t) WHERE x.k < 3")
    assert result.rowcount == 2
    assert stock.rows("SELECT k, v, n FROM t") == [
        (1, "a!", Decimal("1.50")),
        (2, "b!", Decimal("1.50")),
        (3, None, Decimal("-2.00")),
    ]
    kinds = stock.log("t").column("_change_type").to_pylist()
    assert kinds.count("update_preimage") == kinds.count("update_postimage") == 2


def test_update_of_keys_swaps(stock: Small) -> None:
    stock.run("UPDATE t SET k = CASE k WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE k END")
    assert stock.rows("SELECT k, v FROM t") == [(1, "b"), (2, "a"), (3, None)]


def test_keys_may_collide_inside_a_transaction(stock: Small) -> None:
    stock.run("UPDATE t SET k = 2 WHERE v = 'a'", "UPDATE t SET k = 1 WHERE v = 'b'")
    assert stock.rows("SELECT k, v FROM t") == [(1, "b"), (2, "a"), (3, None)]


def test_delete_and_truncate(stock: Small) -> None:
    assert stock.run("DELETE FROM t WHERE v IS NULL").rowcount == 1
    assert stock.run("TRUNCATE TABLE t").rowcount == 2
    assert stock.rows("SELECT * FROM t") == []


def test_overwrite(stock: Small) -> None:
    stock.run("INSERT OVERWRITE t VALUES (1, 'new', NULL), (9, 'nine', 9)")
    assert stock.rows("SELECT k, v FROM t") == [(1, "new"), (9, "nine")]


def test_merge(stock: Small) -> None:
    stock.create("CREATE TABLE s (k INT PRIMARY KEY, v STRING, n DECIMAL(10,2))")
    stock.run("INSERT INTO s VALUES (1, 'one', 1), (2, 'two', 2), (7, 'seven', 7)")
    stock.run(
        "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED AND s.k = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, upper(s.v)) "
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 'alone'"
    )
    assert stock.rows("SELECT * FROM t") == [
        (2, "two", Decimal("2.00")),
        (3, "alone", Decimal("-2.00")),
        (7, "SEVEN", None),
    ]


def test_merge_cardinality(stock: Small) -> None:
    with pytest.raises(CQError, match="several times"):
        stock.run(
            "MERGE INTO t USING (SELECT * FROM VALUES (1, 'p'), (1, 'q') AS d(k, v)) s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET v = s.v"
        )
    stock.run("MERGE INTO t USING (SELECT explode(array(1, 1)) AS k) s ON t.k = s.k WHEN MATCHED THEN DELETE")
    assert stock.rows("SELECT k FROM t") == [(2,), (3,)]


def test_a_failed_statement_leaves_no_trace(stock: Small) -> None:
    transaction = stock.begin()
    execute(transaction, "INSERT INTO t VALUES (4, 'd', 4)")
    for bad in (
        "INSERT INTO t SELECT 5, 'e', 1 / 0",
        "UPDATE t SET n = n / 0",
        "INSERT INTO t VALUES ('5', 'e', 5)",
        "INSERT INTO t VALUES (5000000000, 'e', 5)",
        "DELETE FROM t WHERE nope = 1",
    ):
        with pytest.raises(CQError):
            execute(transaction, bad)
    assert stock.rows("SELECT k FROM t", transaction) == [(1,), (2,), (3,), (4,)]
    transaction.commit()
    assert stock.rows("SELECT k FROM t") == [(1,), (2,), (3,), (4,)]


def test_errors_say_where(stock: Small) -> None:
    with pytest.raises(AnalysisError) as caught:
        stock.run("UPDATE t SET v = 'x'\nWHERE nope = 1")
    assert caught.value.location is not None
    assert (
        caught.value.location.line,
        caught.value.location.column,
    ) == (2, 7)
    with pytest.raises(AnalysisError, match="there is no table tt") as caught:
        stock.rows("SELECT * FROM tt")
    assert caught.value.hint == "did you mean t?"
    assert caught.value.location is not None
    assert caught.value.location.column == 15
    with pytest.raises(CQSyntaxError):
        stock.rows("SELECT FROM WHERE")


def test_net_changes_only(stock: Small) -> None:
    before = stock.catalog.newest_version
    assert stock.run("DELETE FROM t WHERE k = 1", "INSERT INTO t VALUES (1, 'a', 1.5)").commit_version is None
    assert stock.run("INSERT INTO t VALUES (8, 'h', 8)", "DELETE FROM t WHERE k = 8").commit_version is None
    assert stock.run("UPDATE t SET v = v").commit_version is None
    assert stock.catalog.newest_version == before
    stock.run("DELETE FROM t WHERE k = 1", "INSERT INTO t VALUES (1, 'z', 1.5)")
    assert stock.log("t").column("_change_type").to_pylist()[-2:] == ["update_preimage", "update_postimage"]


def test_a_table_without_key(small: Small) -> None:
    small.create("CREATE TABLE h (a INT, b STRING)")
    small.run("INSERT INTO h VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
    small.run("UPDATE h SET b = 'y' WHERE a = 1")
    assert small.rows("SELECT * FROM h") == [(1, "y"), (1, "y"), (None, None)]
    log = small.log("h").to_pylist()
    assert {r["_row_id"] for r in log if r["_commit_version"] == 2} < {r["_row_id"] for r in log}


def test_constraints(stock: Small) -> None:
    stock.create(
        "CREATE TABLE c (id INT PRIMARY KEY, k INT, x STRING NOT NULL, "
        "FOREIGN KEY (k) REFERENCES t (k) ENFORCED)"
    )
    with pytest.raises(ConstraintError, match=r"PRIMARY KEY of table t would be violated by \(k = 1\)"):
        stock.run("INSERT INTO t VALUES (1, 'again', 0)")
    with pytest.raises(ConstraintError, match="several"):
        stock.run("INSERT INTO t VALUES (5, 'p', 0), (5, 'q', 0)")
    with pytest.raises(ConstraintError, match="must not be NULL"):
        stock.run("INSERT INTO t VALUES (NULL, 'p', 0)")
    with pytest.raises(ConstraintError, match="must not be NULL"):
        stock.run("INSERT INTO c VALUES (1, 1, NULL)")
    with pytest.raises(ConstraintError, match="has no row in t"):
        stock.run("INSERT INTO c VALUES (1, 77, 'x')")
    stock.run("INSERT INTO c VALUES (1, 77, 'x'), (2, NULL, 'y')", "INSERT INTO t VALUES (77, 'p', 0)")
    with pytest.raises(ConstraintError, match="still refer"):
        stock.run("DELETE FROM t WHERE k = 77")
    stock.run("DELETE FROM t WHERE k = 77", "DELETE FROM c WHERE k = 77")
    assert stock.rows("SELECT id FROM c") == [(2,)]
