"""Change rows of many commits: put together once, and always those that the change sets have."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.change_rows import COMMIT_VERSION
from cq_engine.catalog.model import ChangeSet, VersionedTable
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.storage.joined_changes import JoinedChanges
from cq_engine.storage.reader import Reader

ROOM = 64 * 2**20
KEY = (1, (Column("n", "bigint"),))


def made(number: int, rows: int) -> ChangeSet:
    return ChangeSet(1, number, number, rows, frozenset({"INSERT"}), inline_id=number, id=number)


def rows_of(sets: Sequence[ChangeSet]) -> pa.Table:
    return pa.table({"n": pa.array([s.id for s in sets for _ in range(s.rows)], pa.int64())})


def ask(joined: JoinedChanges, sets: Sequence[ChangeSet]) -> int:
    """Asks for the rows of change sets as the reader does, and checks them; how many sets had to be read."""
    known, there = joined.find(KEY, sets)
    assert (there is None) == (known == 0)
    if known < len(sets):
        joined.add(KEY, known, sets, rows_of(sets[known:]))
    found = pa.concat_tables([*([] if there is None else [there.table]), rows_of(sets[known:])])
    assert found.column("n").to_pylist() == rows_of(sets).column("n").to_pylist()
    return len(sets) - known


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), most=st.sampled_from([0, 400, 10**9]))
def test_rows_are_those_of_the_change_sets(seed: int, most: int) -> None:
    """While commits come, logs are flushed and merged, and readers ask for older versions."""
    chance = random.Random(seed)
    joined, sets, last = JoinedChanges(most, 20), [made(0, 3)], 0
    for _ in range(60):
        step = chance.random()
        if step < 0.6:
            last += 1
            sets.append(made(last, chance.choice([0, 1, 2, 50])))
        elif step < 0.7 and len(sets) > 4:  # flushed: some are one now, with another number
            last += 1
            begin = chance.randrange(len(sets) - 2)
            end = chance.randint(begin + 1, len(sets) - 1)
            sets[begin:end] = [made(last, sum(s.rows for s in sets[begin:end]))]
        elif step < 0.75:  # merged into the snapshot
            del sets[: chance.randint(0, len(sets) - 1)]
        ask(joined, sets[: chance.randint(1, len(sets))] if chance.random() < 0.3 else sets)


def test_a_row_is_read_once_and_runs_are_few() -> None:
    joined, sets = JoinedChanges(10**9, 20), []
    for number in range(1, 1_001):
        sets.append(made(number, 3))
        assert ask(joined, sets) == 1
        assert ask(joined, sets[: max(1, number // 2)]) == 0, "an older version is a part of it"
        _, there = joined.find(KEY, sets)
        assert there is not None
        assert len(there.parts) <= 2 + math.log2(number)


def test_what_somebody_else_has_added_meanwhile_stays() -> None:
    joined, sets = JoinedChanges(10**9, 20), [made(n, 2) for n in range(1, 6)]
    known, _ = joined.find(KEY, sets[:3])
    ask(joined, sets)
    joined.add(KEY, known, sets[:3], rows_of(sets[:3]))
    assert ask(joined, sets) == 0
    joined.forget(2)
    assert ask(joined, sets) == 0
    joined.forget(1)
    assert ask(joined, sets) == 5
    joined.keep_tables({2})
    assert ask(joined, sets) == 5


def test_what_has_no_room_is_not_copied() -> None:
    """The rows that are there stay, and no run is put together to be thrown away."""
    joined, sets = JoinedChanges(1_000, 10**9), [made(n, 10) for n in range(1, 30)]
    for number in range(1, 30):
        ask(joined, sets[:number])
    known, there = joined.find(KEY, sets)
    assert there is not None
    assert 0 < there.nbytes <= 1_000
    assert known == there.num_rows // 10


def wide_rows(sets: Sequence[ChangeSet]) -> pa.Table:
    count = sum(s.rows for s in sets)
    version = pa.array([s.id for s in sets for _ in range(s.rows)], pa.int64())
    return pa.table({"n": pa.array(range(count, 0, -1), pa.int64()), COMMIT_VERSION: version})


@pytest.mark.parametrize(("most", "stays_sorted"), [(60_000, True), (30_000, False)])
def test_sorted_copies_count(most: int, stays_sorted: bool) -> None:
    """They are made after rows were kept. Where both have no room, rows are looked through, and later ones are kept all the same."""
    joined, sets = JoinedChanges(most, 20), [made(1, 1_000)]
    joined.add(KEY, 0, sets, wide_rows(sets))
    for number in range(2, 12):
        known, there = joined.find(KEY, sets)
        assert known == len(sets)
        assert there is not None
        assert there.having({"n": pa.array([5], pa.int64())}).num_rows >= 1
        assert joined._tables.currsize <= most
        sets.append(made(number, 10))
        joined.add(KEY, known, sets, wide_rows(sets[known:]))
    _, there = joined.find(KEY, sets)
    assert there is not None
    assert there.parts[0].run.is_searched == stays_sorted
    assert joined._tables.currsize == sum(part.run.nbytes for part in there.parts)


def test_rows_of_before_a_merge_give_way() -> None:
    joined = JoinedChanges(50_000, 10**9)
    old, other, new = ((number, KEY[1]) for number in (1, 2, 3))
    for key in (old, other):
        joined.add(key, 0, [made(1, 1_000)], wide_rows([made(1, 1_000)]))
    assert joined.find(old, [made(2, 10)]) == (0, None), "its change sets have been merged"
    joined.add(new, 0, [made(1, 1_000)], wide_rows([made(1, 1_000)]))
    assert joined.find(other, [made(1, 1_000)])[0] == 1


@pytest.fixture(params=[(10**6, ROOM), (0, ROOM), (10**6, 3_000)], ids=["inline", "files", "no room"])
def engine(
    spark: SparkSession, warehouse: Path, request: pytest.FixtureRequest
) -> Iterator[cq_engine.Engine]:
    limits = Limits(
        small_rows=-1,
        joined_sets=2,
        joined_rows=8,
        relevant_rows=2,
        inline_bytes=request.param[0],
        joined_bytes=request.param[1],
    )
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as opened:
        opened.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, v BIGINT)")
        opened.execute("INSERT INTO t SELECT id, id FROM range(40)")
        opened.execute("COMPACT TABLE t")
        yield opened


def commit(engine: cq_engine.Engine, chance: random.Random, rows: dict[int, int]) -> None:
    given: dict[int, dict[str, Any]] = {}
    for _ in range(chance.randint(1, 5)):
        key, value = chance.randrange(80), chance.randrange(1_000)
        kind = "INSERT" if key not in rows else chance.choice(["UPDATE", "DELETE"])
        if key not in given:
            given[key] = {"k": key, "v": None if kind == "DELETE" else value, "op": kind}
    schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "op": pa.string()})
    engine.apply_changes({"t": pa.Table.from_pylist(list(given.values()), schema)}, op="op")
    for key, change in given.items():
        rows.pop(key, None)
        if change["op"] != "DELETE":
            rows[key] = change["v"]


def found(reader: Reader, table: VersionedTable, version: int) -> dict[int, int]:
    every = pa.table({"k": pa.array(range(80), pa.int64())})
    rows = reader.lookup(table, version, every).to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: row["v"] for row in rows}


@pytest.mark.parametrize("seed", range(2))
def test_look_ups_are_right_at_every_version(engine: cq_engine.Engine, seed: int) -> None:
    """Beside merges and flushed logs, and as a reader says that keeps nothing."""
    chance = random.Random(seed)
    rows = {n: n for n in range(40)}
    table = engine.catalog.state.tables["t"].storage
    past: dict[int, dict[int, int]] = {}
    for step in range(40):
        commit(engine, chance, rows)
        version = engine.catalog.newest_version
        past[version] = dict(rows)
        assert found(engine.reader, table, version) == rows
        earlier = chance.choice(sorted(past))
        assert found(engine.reader, table, earlier) == past[earlier]
        if step in (15, 30):
            engine.execute("COMPACT TABLE t") if step == 15 else engine.publish()
        base = engine.catalog.layout(table.id, version).base
        plain = Reader(engine.catalog, engine.reader.spark)
        logs = [reader.changes_arrow(table, base, version) for reader in (engine.reader, plain)]
        assert logs[0] is not None
        assert logs[0].equals(logs[1])
        assert logs[0].column(COMMIT_VERSION).to_pylist() == sorted(
            logs[0].column(COMMIT_VERSION).to_pylist()
        )


@pytest.mark.parametrize("engine", [(10**6, ROOM), (0, ROOM)], ids=["inline", "files"], indirect=True)
def test_a_commit_reads_what_came_since_the_last(
    engine: cq_engine.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, rows = random.Random(3), {n: n for n in range(40)}
    read: list[int] = []
    right: Callable[..., Any] = engine.reader.rows_of

    def counting(table: VersionedTable, sets: Sequence[ChangeSet], *rest: Any, **more: Any) -> Any:
        read.append(len(sets))
        return right(table, sets, *rest, **more)

    monkeypatch.setattr(engine.reader, "rows_of", counting)
    for _ in range(30):
        del read[:]
        commit(engine, chance, rows)
    assert sum(read) <= 2
    table = engine.catalog.state.tables["t"].storage
    assert found(engine.reader, table, engine.catalog.newest_version) == rows
