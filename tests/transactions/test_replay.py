"""Replay of batches of changes, against one that takes a change at a time."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cq_engine.catalog.model import Table, VersionedTable
from cq_engine.core.columns import Column
from cq_engine.core.errors import ConstraintError
from cq_engine.transactions.change_batches import Batch, Operation
from cq_engine.transactions.replay import Log, replay

COLUMNS = (Column("a", "int"), Column("b", "string"), Column("x", "double"))
SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), ("x", pa.float64())])
Row = dict[str, Any]
Change = tuple[Operation, Row, Row, int, int]
"""Operation, row, old key, transaction, order."""


def _table(identity: tuple[str, ...]) -> Table:
    storage = VersionedTable(7, "base", "t", COLUMNS, identity)
    return Table("t", storage, primary_key=identity)


def _services(there: pa.Table, identity: tuple[str, ...]) -> Any:
    def lookup(_: VersionedTable, __: int, keys: pa.Table) -> pa.Table:
        wanted = {tuple(row.values()) for row in keys.select(list(identity)).to_pylist()}
        rows = [row for row in there.to_pylist() if tuple(row[name] for name in identity) in wanted]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    return SimpleNamespace(catalog=SimpleNamespace(newest_version=4), reader=SimpleNamespace(lookup=lookup))


DELETES = (Operation.DELETE, Operation.PARTIAL_DELETE)
KEEP_KEY = (Operation.INSERT, Operation.UPSERT, Operation.PARTIAL_UPDATE)


def _one_by_one(there: pa.Table, identity: tuple[str, ...], changes: list[Change]) -> Any:
    """By version and key the row before and after; or the number of the change that fails."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in identity)

    rows = {key(row): row for row in there.to_pylist()}
    found: dict[tuple[int, Any], list[Row | None]] = {}
    inorder = sorted(range(len(changes)), key=lambda n: changes[n][3:])
    for n in inorder:
        operation, row, old, transaction, _ = changes[n]
        was = key(row) if operation in KEEP_KEY or None in key(old) else key(old)
        here = was in rows
        if (operation is Operation.INSERT and here) or (
            operation in (Operation.UPDATE, Operation.DELETE, Operation.PARTIAL_UPDATE) and not here
        ):
            return n
        if operation is Operation.UPDATE and was != key(row) and key(row) in rows:
            return n
        for each in dict.fromkeys([was] if operation in DELETES else [was, key(row)]):
            found.setdefault((transaction, each), [rows.get(each), None])
        rows.pop(was, None)
        if operation not in DELETES:
            rows[key(row)] = row
        for (version, each), images in found.items():
            if version == transaction:
                images[1] = rows.get(each)
    return {k: v for k, v in found.items() if v[0] != v[1]}


def _in_versions(log: Log, identity: tuple[str, ...]) -> Any:
    rows = log.rows.to_pylist()
    found = {}
    versions = []
    for before, after, version in log.events:
        row = rows[max(before, after)] if min(before, after) < 0 else rows[before]
        place = (version - 5, tuple(row[name] for name in identity))
        assert place not in found
        found[place] = [rows[before] if before >= 0 else None, rows[after] if after >= 0 else None]
        versions.append(version)
    assert versions == sorted(versions)
    return found


def _random_changes(rng: random.Random, there: pa.Table, moves: bool) -> list[Change]:
    alive = {(row["a"], row["b"]) for row in there.to_pylist()}
    changes: list[Change] = []
    for n in range(rng.randrange(1, 30)):
        free = [(a, b) for a in range(4) for b in "pq" if (a, b) not in alive]
        operation = rng.choice(list(Operation)) if rng.random() < 0.97 else Operation.INSERT
        pool = free if operation is Operation.INSERT else sorted(alive)
        if operation in (Operation.UPSERT, Operation.PARTIAL_DELETE) or not pool or rng.random() < 0.01:
            pool = [(rng.randrange(4), rng.choice("pq"))]
        old = rng.choice(pool)
        new = (
            rng.choice(free)
            if moves and operation is Operation.UPDATE and free and rng.random() < 0.4
            else old
        )
        row = {"a": new[0], "b": new[1], "x": rng.choice([0.0, 1.0, None])}
        nothing = moves and operation in DELETES and rng.random() < 0.5
        key = {"a": None, "b": None} if nothing else {"a": old[0], "b": old[1]}
        changes.append((operation, row, key, n // 5, n))
        alive.discard(old)
        if operation not in DELETES:
            alive.add(new)
    rng.shuffle(changes)
    return changes


@pytest.mark.parametrize("moves", [False, True], ids=["keys stay", "keys change"])
def test_random_batches(moves: bool) -> None:
    identity = ("a", "b")
    failed = 0
    for seed in range(400):
        rng = random.Random(seed)
        start = [{"a": a, "b": b, "x": 1.0} for a in range(4) for b in "pq" if rng.random() < 0.5]
        there = pa.Table.from_pylist(start, schema=SCHEMA)
        changes = _random_changes(rng, there, moves)
        batch = Batch(
            _table(identity),
            pa.Table.from_pylist([row for _, row, *_ in changes], schema=SCHEMA),
            pa.Table.from_pylist([old for _, _, old, *_ in changes], schema=pa.schema(list(SCHEMA)[:2]))
            if moves
            else None,
            np.array([operation for operation, *_ in changes]),
            None,
            pa.chunked_array([pa.array([order for *_, order in changes])]),
            None,
        )
        expected = _one_by_one(there, identity, changes)
        ranks = np.array([transaction for *_, transaction, _ in changes])
        if isinstance(expected, int):
            failed += 1
            row = ", ".join(f"{k} = {v!r}" for k, v in changes[expected][1].items())
            with pytest.raises(ConstraintError, match=changes[expected][0].word) as error:
                replay(_services(there, identity), batch, ranks, 5)
            assert error.value.detail == f"the change is ({row})"
        else:
            found = replay(_services(there, identity), batch, ranks, 5)
            assert _in_versions(found, identity) == expected
            net = found.net()
            moved = {tuple(row.values()) for row in net.removed_rows().to_pylist()}
            after = {tuple(row.values()) for row in start} - moved
            after |= {tuple(row.values()) for row in net.added_rows().to_pylist()}
            last = {tuple(row.values()) for row in start}
            for (_, _), (before, now) in sorted(expected.items(), key=lambda item: item[0][0]):
                last -= {tuple(before.values())} if before else set()
                last |= {tuple(now.values())} if now else set()
            assert after == last
    assert 10 < failed < 200
