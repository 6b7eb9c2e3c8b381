"""Orders with many ties, in all modes: the result is the one in which the rows' identity decides, at every commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from tests.oracle.law import Change, Row, replay, row_of
from tests.oracle.tied import QUERIES, Query
from tests.oracle.tied_history import TiedHistory
from tests.oracle.warehouse import forced

COMMITS = 4


@pytest.mark.parametrize(("seed", "queries"), [(1, QUERIES[::2]), (2, QUERIES[1::2])], ids=["small", "bulk"])
def test_ties_are_broken_by_the_identity_in_every_mode(
    spark: SparkSession, warehouse: Path, seed: int, queries: Sequence[Query]
) -> None:
    history = TiedHistory(seed)
    results: list[list[list[Row]]] = [[] for _ in queries]
    versions: list[int] = []
    limits = Limits(**forced(bulk=seed % 2 == 0, large=False))
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=limits) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, p INT, o INT, x INT, s STRING)")
        engine.execute("CREATE TABLE e (p INT, o INT, x INT, s STRING)")
        for at in range(COMMITS):
            _commit(engine, history.commit(), versions)
            for number, (_, expected) in enumerate(queries):
                results[number].append([row_of(r) for r in expected(history.tables)])
            if at == 0:
                _create(engine, queries)
                continue
            for number in range(len(queries)):
                engine.refresh(f"each{number}")
                if at % 2:
                    engine.refresh(f"packed{number}")
        for number in range(len(queries)):
            engine.refresh(f"batch{number}")
            _check(engine, f"each{number}", versions, results[number])
            _check(engine, f"batch{number}", versions, results[number])
            packed = [at for at in range(COMMITS) if at == 0 or at % 2]
            _check(
                engine,
                f"packed{number}",
                [versions[at] for at in packed],
                [results[number][at] for at in packed],
            )


def _commit(engine: cq_engine.Engine, statements: Sequence[str], versions: list[int]) -> None:
    with engine.transaction() as transaction:
        for statement in statements:
            transaction.execute(statement)
    versions.append(transaction.commit_version or versions[-1])


def _create(engine: cq_engine.Engine, queries: Sequence[Query]) -> None:
    for number, (query, _) in enumerate(queries):
        for name, mode in (("each", "TRANSACTIONAL"), ("batch", "TRANSACTIONAL"), ("packed", "COMPRESSED")):
            start = "START FROM SNAPSHOT" if name == "batch" else ""
            made = f"CREATE CONTINUOUS QUERY {name}{number} COMPUTE {mode} DELTA ON DEMAND {start} AS {query}"
            message = engine.execute(made).message or ""
            assert "FULL" not in message, message


def _check(
    engine: cq_engine.Engine, name: str, versions: Sequence[int], results: Sequence[list[Row]]
) -> None:
    """The snapshot (of `batch`) and all deltas of the query lead to the results."""
    described = engine.describe(name)
    places = None if described.key is None else [described.columns.index(k) for k in described.key]
    changes = [
        Change(
            d.commit_version,
            d.sequence,
            d.marker,
            *(None if r is None else row_of(r) for r in (d.key, d.new, d.old)),
        )
        for d in engine.deltas(name)
    ]
    snapshot = [c.new for c in changes if c.version <= versions[0]]
    if name.startswith("batch"):
        assert sorted(map(str, snapshot)) == sorted(map(str, results[0]))
    by_version = dict(zip(versions[1:], results[1:]))
    later = [c for c in changes if c.version > versions[0]]
    replay(results[0], places, later, sorted(by_version.items()))
