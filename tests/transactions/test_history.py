"""Random histories against DuckDB: images, change logs, time travel, in memory and through files."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION
from cq_engine.core.limits import Limits
from tests.transactions.harness import Small, execute

SCHEMA = "CREATE TABLE t (k INT PRIMARY KEY, g INT, v VARCHAR, x DOUBLE)"


def _statement(rng: random.Random) -> str:
    k, g, n = rng.randrange(8), rng.randrange(4), rng.randrange(100)
    return rng.choice(
        [
            f"DELETE FROM t WHERE k = {k}",
            f"DELETE FROM t WHERE g = {g}",
            f"UPDATE t SET g = {g}, x = x * 2 WHERE k >= {k}",
            f"UPDATE t SET v = v || '{n}' WHERE g = {g} OR v IS NULL",
            f"UPDATE t SET k = k + 100 WHERE k < 100 AND g = {g}",
            f"UPDATE t SET x = (SELECT max(g) FROM t) WHERE k = {k}",
            f"DELETE FROM t WHERE k = {k}; INSERT INTO t VALUES ({k}, {g}, 'r{n}', 0.5)",
            f"DELETE FROM t WHERE k = {k}; INSERT INTO t VALUES ({k}, NULL, NULL, NULL)",
            f"INSERT INTO t SELECT k + 1000 * ({n} + 1), g, v, x FROM t WHERE k < 4",
            f"INSERT INTO t VALUES ({1000000 + rng.randrange(10**6)}, {g}, 's', -1.5)",
        ]
    )


def _oracle(connection: duckdb.DuckDBPyConnection) -> list[tuple[object, ...]]:
    return sorted(connection.execute("SELECT * FROM t").fetchall(), key=repr)


def replayed(
    log: list[dict[str, object]], identity: str, columns: list[str]
) -> dict[int, list[tuple[object, ...]]]:
    """The image after every version, from the change log alone."""
    state: dict[object, tuple[object, ...]] = {}
    images: dict[int, list[tuple[object, ...]]] = {}
    for version in sorted({row[COMMIT_VERSION] for row in log}):
        rows = [row for row in log if row[COMMIT_VERSION] == version]
        for row in rows:
            if row[CHANGE_TYPE] in ("delete", "update_preimage"):
                assert state.pop(row[identity]) == tuple(row[c] for c in columns)
        for row in rows:
            if row[CHANGE_TYPE] in ("insert", "update_postimage"):
                assert row[identity] not in state
                state[row[identity]] = tuple(row[c] for c in columns)
        kinds = Counter((row[identity], row[CHANGE_TYPE]) for row in rows)
        assert all(count == 1 for count in kinds.values())
        images[version] = sorted(state.values(), key=repr)
    return images


def _history(small: Small, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    small.create(SCHEMA.replace("VARCHAR", "STRING"))
    oracle = duckdb.connect()
    oracle.execute(SCHEMA.replace(" PRIMARY KEY", ""))
    expected: dict[int, list[tuple[object, ...]]] = {}
    first = "INSERT INTO t VALUES " + ", ".join(f"({k}, {k % 3}, 'v{k}', {k}.25)" for k in range(6))
    for number in range(rounds):
        texts = [first] if number == 0 else [_statement(rng) for _ in range(rng.randint(1, 3))]
        rolled_back = number > 0 and rng.random() < 0.2
        current = small.begin()
        oracle.execute("BEGIN")
        for text in "; ".join(texts).split("; "):
            execute(current, text)
            oracle.execute(text)
        duplicates = oracle.execute("SELECT k FROM t GROUP BY k HAVING count(*) > 1").fetchall()
        if rolled_back or duplicates:
            current.rollback()
            oracle.execute("ROLLBACK")
            continue
        assert small.rows("SELECT * FROM t", current) == _oracle(oracle)
        current.commit()
        oracle.execute("COMMIT")
        expected[small.catalog.newest_version] = _oracle(oracle)
        assert small.rows("SELECT * FROM t") == _oracle(oracle)
    _check_history(small, expected)


def _check_history(small: Small, expected: dict[int, list[tuple[object, ...]]]) -> None:
    log = small.log("t").to_pylist()
    images = replayed(log, "k", ["k", "g", "v", "x"])
    for version, rows in expected.items():
        assert small.rows(f"SELECT * FROM t VERSION AS OF {version}") == rows
        if version in images:
            assert images[version] == rows


@pytest.mark.parametrize("seed", range(3))
def test_history_in_memory(small: Small, seed: int) -> None:
    _history(small, seed, 10)


@pytest.mark.parametrize("limits", [Limits(small_rows=-1, look_up_rows=-1)])
@pytest.mark.parametrize("seed", [11])
def test_history_through_spark(small: Small, seed: int) -> None:
    """No image in memory: everything goes through Spark's images."""
    _history(small, seed, 6)


@pytest.mark.parametrize("limits", [Limits(pending_rows=0, inline_bytes=0, small_rows=0)])
@pytest.mark.parametrize("seed", [21])
def test_history_in_bulk(small: Small, seed: int) -> None:
    """No row on the driver: every effect is staged by executors, every change set is files."""
    _history(small, seed, 5)


@pytest.mark.parametrize("limits", [Limits(pending_rows=0)])
def test_a_failed_bulk_commit_leaves_nothing(small: Small, spark: SparkSession) -> None:
    small.create("CREATE TABLE t (k INT PRIMARY KEY, g INT)")
    current = small.begin()
    current.insert("t", spark.sql("SELECT CAST(id % 5 AS INT) AS k, 1 AS g FROM range(10)"))
    with pytest.raises(Exception, match="PRIMARY KEY of table t"):
        current.commit()
    small.services.catalog.recover()
    assert not list(Path(small.catalog.warehouse).rglob("*.parquet"))
    current = small.begin()
    current.insert("t", spark.sql("SELECT CAST(id AS INT) AS k, 1 AS g FROM range(10)"))
    current.commit()
    current = small.begin()
    current.insert("t", spark.sql("SELECT CAST(id + 9 AS INT) AS k, 1 AS g FROM range(10)"))
    with pytest.raises(Exception, match=r"k = 9\)"):
        current.commit()
    assert small.rows("SELECT count(*) FROM t") == [(10,)]
