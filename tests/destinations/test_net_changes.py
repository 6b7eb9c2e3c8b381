"""What deltas do to a target that tells keys apart byte by byte, against the result itself."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from cq_engine.catalog.model import ContinuousQuery, VersionedTable
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type
from cq_engine.destinations.targets.net_changes import GONE, net_changes

Row = tuple[Any, Any]
Delta = tuple[str, int, Row, Row]
"""Marker, version, the new and the old row."""
SPELLINGS = {
    "string": [["a"], ["A"], ["b"], [None], [""]],
    "string collate UTF8_LCASE": [["a", "A"], ["bc", "Bc", "BC"], [None], [""]],
    "string collate UTF8_BINARY_RTRIM": [["a", "a ", "a  "], ["b", "b "], [None], ["", " "]],
    "double": [[0.0, -0.0], [1.5], [math.nan], [None]],
}
"""By type, keys that are equal in different spellings."""


def query_by(kind: str) -> ContinuousQuery:
    columns = (Column("v", "int"), Column("k", kind))
    result = VersionedTable(1, "delta", "q", columns, ("k",))
    return ContinuousQuery("q", 1, "", "", result, ("k",), "TRANSACTIONAL", ("I", "D", "U"), width=2)


def written(key: Any) -> str:
    """As a target tells keys apart: byte by byte, but for zeros."""
    return repr(key + 0.0 if isinstance(key, float) else key)


def some_deltas(dice: random.Random, kind: str, result: dict[int, Row], versions: range) -> list[Delta]:
    """Changes of the result, which is given by the number of its key, as deltas."""
    deltas: list[Delta] = []
    for version in versions:
        for number, spellings in enumerate(SPELLINGS[kind]):
            before = result.pop(number, None)
            if dice.random() < 0.7:
                result[number] = dice.randint(0, 3), dice.choice(spellings)
            after = result.get(number)
            if before is not None or after is not None:
                marker = "I" if before is None else "D" if after is None else "U"
                deltas.append((marker, version, after or (None, None), before or (None, None)))
    return deltas


def wide_of(deltas: list[Delta], kind: str) -> pa.Table:
    markers, versions, *sides = zip(*deltas)
    wide = {"marker": pa.array(markers), "version": pa.array(versions, pa.int64())}
    for side, rows in zip(("new", "old"), sides):
        for n, column in enumerate(zip(*rows)):
            wide[f"{side}_{n}"] = pa.array(column, (pa.int32(), arrow_type(kind))[n])
    return pa.table(wide)


def apply(target: dict[str, Row], changes: list[dict[str, Any]]) -> None:
    keys = [written(row["k"]) for row in changes]
    assert len(set(keys)) == len(keys), "one row of the target would be written twice"
    for key, row in zip(keys, changes):
        if row[GONE]:
            target.pop(key, None)
        else:
            target[key] = row["v"], row["k"]


def comparable(rows: Iterable[Row]) -> list[tuple[str, Any]]:
    return sorted((written(key), value) for value, key in rows)


@pytest.mark.parametrize("kind", SPELLINGS)
def test_a_target_that_follows_has_the_result(kind: str) -> None:
    query, dice = query_by(kind), random.Random(kind)
    for _ in range(60):
        result: dict[int, Row] = {}
        target: dict[str, Row] = {}
        version = 0
        for commits in dice.choices((1, 1, 4), k=5):
            deltas = some_deltas(dice, kind, result, range(version, version + commits))
            version += commits
            if deltas:
                apply(target, net_changes(query, wide_of(deltas, kind)).to_pylist())
            assert comparable(target.values()) == comparable(result.values())
