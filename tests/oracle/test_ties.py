"""Orders with many ties, in every mode: the result is the one in which the rows' identity decides, at every commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from tests.limits import forced
from tests.oracle.budget import LARGE_RUN
from tests.oracle.law import Change, Row, replay, row_of
from tests.oracle.tied import QUERIES, Query
from tests.oracle.tied_history import TiedHistory

COMMITS = 4 if LARGE_RUN else 3


@pytest.mark.parametrize(
    ("seed", "queries"),
    [(1, QUERIES[::2]), (2, QUERIES[1::4]), pytest.param(2, QUERIES[3::4], marks=pytest.mark.long)],
    ids=["small", "bulk", "more in bulk"],
)
def test_ties_are_broken_by_the_identity_in_every_mode(
    spark: SparkSession, warehouse: Path, seed: int, queries: Sequence[Query]
) -> None:
    history = TiedHistory(seed)
    results: list[list[list[Row]]] = [[] for _ in queries]
    versions: list[int] = []
    limits = Limits(**forced(bulk=seed % 2 == 0, large=False, arrow=seed % 4 == 1))
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
                for name in _modes(number) - {"batch"}:
                    if name == "each" or at % 2:
                        engine.refresh(f"{name}{number}")
        for number in range(len(queries)):
            for name in _modes(number):
                seen = [at for at in range(COMMITS) if name != "packed" or at == 0 or at % 2]
                if name == "batch":
                    engine.refresh(f"batch{number}")
                _check(
                    engine,
                    f"{name}{number}",
                    [versions[at] for at in seen],
                    [results[number][at] for at in seen],
                )


def _modes(number: int) -> set[str]:
    """A refresh per commit, and one of the others; in a large run both of them."""
    others = ("batch", "packed")
    return {"each", *(others if LARGE_RUN else others[number % 2 :][:1])}


def _commit(engine: cq_engine.Engine, statements: Sequence[str], versions: list[int]) -> None:
    with engine.transaction() as transaction:
        for statement in statements:
            transaction.execute(statement)
    versions.append(transaction.commit_version or versions[-1])


def _create(engine: cq_engine.Engine, queries: Sequence[Query]) -> None:
    for number, (query, _) in enumerate(queries):
        for name in sorted(_modes(number)):
            mode = "COMPRESSED" if name == "packed" else "TRANSACTIONAL"
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
