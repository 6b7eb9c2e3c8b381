"""Hidden identities that executors give: every row has its own, and no more are reserved than may be given."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.core.limits import Limits
from tests.transactions.harness import Small, execute

BY_EXECUTORS = Limits(pending_rows=3, small_rows=-1)
PARTITIONS = 3


def ids(small: Small, name: str = "t") -> list[int]:
    """Those of the rows that are there, which must be below what is reserved."""
    storage = small.table(name).storage
    image = small.services.reader.image(storage, small.catalog.newest_version)
    found = [int(row[0]) for row in image.select("_row_id").collect()]
    assert len(set(found)) == len(found)
    assert all(each < reserved(small, name) for each in found)
    return found


def reserved(small: Small, name: str = "t") -> int:
    return small.catalog.view.storage[small.table(name).storage.id].next_row_id


def rows(small: Small, count: int = 30) -> DataFrame:
    return small.services.spark().range(0, count, 1, PARTITIONS).select(f.col("id").cast("int").alias("n"))


@pytest.mark.parametrize("limits", [BY_EXECUTORS])
@pytest.mark.parametrize("in_ranges", [False, True])
def test_loads_of_several_partitions(small: Small, in_ranges: bool) -> None:
    """The second one is given up: its identities are nobody's."""
    small.create("CREATE TABLE t (n INT) CLUSTER BY (n)")
    for kept in (True, False, True, True):
        transaction = small.begin()
        assert transaction.load("t", rows(small), in_ranges=in_ranges) == 30
        if kept:
            transaction.commit()
        else:
            transaction.rollback()
    small.run("INSERT INTO t VALUES (1), (2)")
    assert len(ids(small)) == 92


@pytest.mark.parametrize("limits", [BY_EXECUTORS])
def test_changes_by_executors(small: Small) -> None:
    small.create("CREATE TABLE t (n INT, v INT)")
    small.run("INSERT INTO t SELECT CAST(id AS INT), 0 FROM range(20)")
    before, known = reserved(small), set(ids(small))
    small.run("UPDATE t SET v = 1 WHERE n < 15")
    assert set(ids(small)) == known
    small.run(
        "MERGE INTO t USING (SELECT CAST(id AS INT) AS n FROM range(20)) s ON t.n = s.n WHEN MATCHED THEN UPDATE SET v = 2"
    )
    assert set(ids(small)) == known
    small.run("DELETE FROM t WHERE n >= 15")
    assert reserved(small) == before  # no row was new
    source = "(SELECT CAST(id AS INT) AS n FROM range(10, 40, 1, 5))"
    for action in ("UPDATE SET v = 3", "DELETE"):
        text = f"MERGE INTO t USING {source} s ON t.n = s.n WHEN MATCHED THEN {action} WHEN NOT MATCHED THEN INSERT (n, v) VALUES (s.n, 4)"
        small.run(text)
        assert len(ids(small)) == len(small.rows("SELECT n FROM t"))
    assert reserved(small) - before < 2**40


@pytest.mark.parametrize("limits", [BY_EXECUTORS])
def test_changes_within_a_transaction(small: Small) -> None:
    small.create("CREATE TABLE t (n INT, v INT)")
    transaction = small.begin()
    execute(transaction, "INSERT INTO t SELECT CAST(id AS INT), 0 FROM range(20)")
    execute(
        transaction,
        "MERGE INTO t USING (SELECT CAST(id AS INT) AS n FROM range(10, 30)) s ON t.n = s.n WHEN MATCHED THEN UPDATE SET v = 1 WHEN NOT MATCHED THEN INSERT (n, v) VALUES (s.n, 2)",
    )
    execute(transaction, "INSERT INTO t VALUES (100, 3)")
    transaction.commit()
    assert len(ids(small)) == 31
