"""Partial deltas on their way out: P, S and K in the wide layout, by marker, as Python objects and as text."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from cq_engine.catalog.model import ContinuousQuery
from cq_engine.core.columns import Column
from cq_engine.destinations.envelope import deltas_of
from cq_engine.destinations.pairs import pair, select_markers
from cq_engine.destinations.row_text import delta_texts
from cq_engine.destinations.targets.net_changes import GONE, net_changes

COLUMNS = (Column("k", "int"), Column("v", "string"))
LOG = [
    (1, "a", "insert", 1),
    (2, "b", "update_postimage", 2), (2, "x", "update_preimage", 2),
    (3, "c", "partial_update", 3),
    (4, "d", "upsert", 4),
    (5, None, "partial_delete", 5),
    (6, "f", "delete", 6),
]  # fmt: skip
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def _query() -> ContinuousQuery:
    result = SimpleNamespace(columns=COLUMNS)
    return cast("ContinuousQuery", SimpleNamespace(key=("k",), width=2, result=result))


def _wide() -> pa.Table:
    keys, values, kinds, sequences = zip(*LOG)
    changes = {
        "k": pa.array(keys, pa.int32()),
        "v": pa.array(values, pa.string()),
        "_change_type": pa.array(kinds),
        "_commit_version": pa.array([7] * len(LOG), pa.int64()),
        "_sequence": pa.array(sequences, pa.int64()),
        "_refresh_time": pa.array([NOW] * len(LOG), pa.timestamp("us", "UTC")),
    }
    return pair(pa.table(changes), COLUMNS)


def _deltas(wide: pa.Table) -> list[Any]:
    return list(deltas_of(_query(), wide, {7: NOW}))


def test_deltas() -> None:
    found = [(each.marker, each.key, each.new, each.old) for each in _deltas(_wide())]
    assert found == [
        ("I", (1,), (1, "a"), None),
        ("U", (2,), (2, "b"), (2, "x")),
        ("P", (3,), (3, "c"), None),
        ("S", (4,), (4, "d"), None),
        ("K", (5,), None, None),
        ("D", (6,), None, (6, "f")),
    ]


@pytest.mark.parametrize(
    ("asked", "given"),
    [("I", "IS"), ("U", "UPS"), ("D", "KD"), ("IU", "IUPS"), ("ID", "ISKD"), ("IUD", "IUPSKD")],
)
def test_a_delta_is_given_to_who_asks_for_what_it_may_be(asked: str, given: str) -> None:
    assert "".join(select_markers(_wide(), tuple(asked)).column("marker").to_pylist()) == given


def test_text() -> None:
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
    texts = delta_texts(schema, [("k", pa.int32())])(_deltas(_wide()))
    found = [json.loads("{" + text + "}") for text in texts]
    assert [each["op"] for each in found] == ["c", "u", "u", "r", "d", "d"]
    assert [each["key"] for each in found] == [{"k": n} for n in range(1, 7)]
    assert [each["before"] is None for each in found] == [True, False, True, True, True, False]


def test_what_a_target_with_the_result_does() -> None:
    found = net_changes(_query(), _wide())
    assert found.column("k").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert found.column(GONE).to_pylist() == [False, False, False, False, True, True]
