"""A large interval of a transactional query is refreshed in slices of whole commits: the same deltas, and what is done stays."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.errors import RefreshError
from cq_engine.core.limits import Limits
from tests.limits import limited

QUERIES = {
    "joined": "SELECT o.k, o.v, c.v AS w FROM o JOIN c ON o.g = c.k",
    "grouped": "SELECT g, count(*) AS n, sum(v) AS s, max(v) AS m FROM o GROUP BY g",
    "outer_join": "SELECT c.k, o.k AS ok FROM c LEFT JOIN o ON o.g = c.k",
}
WHOLE = {"slice_changes": 10**9, "least_slice_changes": 10**9}


@pytest.fixture(params=[0, 2**25], ids=["slices of files", "files in memory"])
def engine(
    spark: SparkSession, warehouse: Path, request: pytest.FixtureRequest
) -> Iterator[cq_engine.Engine]:
    limits = Limits(inline_bytes=0, kept_change_bytes=request.param, slice_changes=20, least_slice_changes=8)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as opened:
        opened.execute("CREATE TABLE c (k BIGINT PRIMARY KEY, v BIGINT)")
        opened.execute("CREATE TABLE o (k BIGINT PRIMARY KEY, g BIGINT, v BIGINT)")
        opened.execute("INSERT INTO c SELECT id, id FROM range(8)")
        yield opened


def create(engine: cq_engine.Engine, name: str, text: str, mode: str = "TRANSACTIONAL") -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND AS {text}")


def apply(engine: cq_engine.Engine, seed: int, commits: int, *, first: int = 0) -> list[int]:
    """One call with many transactions, most of them of few rows and some of many; their versions."""
    chosen = random.Random(seed)
    rows: list[dict[str, Any]] = []
    there = {row[0] for row in engine.execute("SELECT k FROM o").fetchall()}
    for number in range(first, first + commits):
        for key in chosen.sample(range(60), 40 if number % 9 == 4 else chosen.randrange(1, 5)):
            op = chosen.choice("UUD") if key in there else "I"
            there = there - {key} if op == "D" else there | {key}
            row = {"k": key, "g": chosen.randrange(10), "v": chosen.randrange(100)}
            rows.append({**row, "op": op, "txn": number, "seq": len(rows)})
    return list(
        engine.apply_changes({"o": pa.Table.from_pylist(rows)}, op="op", transaction="txn", order="seq")
    )


def intervals(engine: cq_engine.Engine, name: str) -> list[tuple[int, int]]:
    return sorted((each.from_version, each.to_version) for each in engine.catalog.refreshes(name))


@pytest.mark.parametrize("seed", range(3))
def test_slices_give_the_deltas_of_the_whole(engine: cq_engine.Engine, seed: int) -> None:
    for name, text in QUERIES.items():
        create(engine, name, text)
        create(engine, f"{name}_whole", text)
    begin = engine.catalog.newest_version
    apply(engine, seed, 25)
    engine.execute("UPDATE c SET v = v + 1 WHERE k < 3")
    apply(engine, seed + 100, 25, first=25)
    for name in QUERIES:
        done = engine.refresh(name)
        with limited(engine, **WHOLE):
            whole = engine.refresh(f"{name}_whole")
        assert (done.from_version, done.to_version) == (begin, engine.catalog.newest_version)
        counts = [(each.inserted, each.deleted, each.updated) for each in (done, whole)]
        assert counts[0] == counts[1]
        slices = intervals(engine, name)
        assert len(slices) > 5
        assert [low for low, _ in slices[1:]] == [high for _, high in slices[:-1]]
        assert len(intervals(engine, f"{name}_whole")) == 1
        shown = [
            [(d.commit_version, d.marker, d.key, d.new, d.old) for d in engine.deltas(each)]
            for each in (name, f"{name}_whole")
        ]
        assert shown[0]
        assert shown[0] == shown[1]


def test_an_interval_with_too_many_rows_for_the_driver_is_divided(engine: cq_engine.Engine) -> None:
    create(engine, "q", QUERIES["joined"])
    create(engine, "whole", QUERIES["joined"])
    apply(engine, 11, 30)
    with limited(engine, slice_changes=10**9, arrow_rows=60, small_rows=-1):
        engine.refresh("q")
    with limited(engine, **WHOLE):
        engine.refresh("whole")
    assert len(intervals(engine, "q")) > 1
    shown = [
        [(d.commit_version, d.marker, d.key, d.new, d.old) for d in engine.deltas(name)]
        for name in ("q", "whole")
    ]
    assert shown[0] == shown[1]


def test_a_compressed_interval_is_not_cut(engine: cq_engine.Engine) -> None:
    create(engine, "packed", QUERIES["grouped"], "COMPRESSED")
    apply(engine, 7, 25)
    engine.refresh("packed")
    assert len(intervals(engine, "packed")) == 1


def test_a_longer_interval_than_slices_are_for_is_not_cut(engine: cq_engine.Engine) -> None:
    create(engine, "q", QUERIES["grouped"])
    apply(engine, 8, 25)
    with limited(engine, sliced_changes=30):
        engine.refresh("q")
    assert len(intervals(engine, "q")) == 1


def test_what_slices_have_done_stays_where_a_later_one_fails(engine: cq_engine.Engine) -> None:
    create(engine, "q", "SELECT k, 100 DIV (v - 1000) AS x FROM o")
    apply(engine, 9, 25)
    bad = engine.catalog.newest_version + 1
    rows = [{"k": 1000, "g": 1, "v": 1000, "op": "I", "txn": 1, "seq": 1}]
    engine.apply_changes({"o": pa.Table.from_pylist(rows)}, op="op", transaction="txn", order="seq")
    apply(engine, 10, 5, first=50)
    with pytest.raises(RefreshError, match="zero"):
        engine.refresh("q")
    position = engine.describe("q").position
    assert 0 < intervals(engine, "q")[0][1] <= position < bad
    assert max(d.commit_version for d in engine.deltas("q")) <= position
    assert engine.describe("q").state == "FAILED"


def put(engine: cq_engine.Engine, *commits: list[tuple[int, int, int]]) -> None:
    """Commits of new rows (k, g, v) by one call."""
    rows = [
        {"k": k, "g": g, "v": v, "op": "I", "txn": n, "seq": 1000 * n + m}
        for n, commit in enumerate(commits)
        for m, (k, g, v) in enumerate(commit)
    ]
    engine.apply_changes({"o": pa.Table.from_pylist(rows)}, op="op", transaction="txn", order="seq")


def test_destinations_have_what_slices_did_before_one_failed(engine: cq_engine.Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY q COMPUTE TRANSACTIONAL DELTA ON DEMAND DESTINATION TABLE out "
        "AS SELECT k, 100 DIV (v - 1000) AS x FROM o"
    )
    put(engine, [(k, 1, k) for k in range(30)], [(k, 1, k) for k in range(30, 60)], [(60, 1, 1000)])
    with pytest.raises(RefreshError, match="zero"):
        engine.refresh("q")
    assert engine.execute("SELECT count(*) FROM out").fetchall() in ([(30,)], [(60,)])


def test_members_of_a_group_have_what_slices_did_before_one_failed(engine: cq_engine.Engine) -> None:
    for name, group in (("a", 1), ("b", 2)):
        engine.execute(
            f"CREATE CONTINUOUS QUERY {name} COMPUTE TRANSACTIONAL DELTA ON DEMAND DESTINATION TABLE {name}_out "
            f"WITH (query_group = 'on') AS SELECT k, 100 DIV (v - 1000) AS x FROM o WHERE g = {group}"
        )
    (group,) = engine.catalog.state.groups
    put(engine, [(1, 1, 1), (2, 2, 2)])
    engine.refresh("b")
    assert engine.execute("SELECT count(*) FROM b_out").fetchall() == [(1,)]
    first = [(k, 2, k) for k in range(100, 130)]
    put(
        engine,
        first,
        [(k, 1, k) for k in range(200, 230)],
        [(300, 1, 1000)],
        [(k, 1, k) for k in range(400, 430)],
    )
    last = engine.catalog.newest_version
    engine.refresh("b")
    assert engine.describe("a").state == "FAILED"
    assert engine.describe("b").position >= last
    engine.queries.groups.settle(whole=True)
    assert engine.execute("SELECT count(*) FROM b_out").fetchall() == [(31,)]
    assert len(list(engine.deltas("b"))) == 31
