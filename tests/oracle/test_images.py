"""Netting, row versions and images exist in SQL and in Arrow: they are the same for generated change logs, types and orders."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cq_engine.catalog.change_rows import COMMIT_VERSION, DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.columns import BEFORE, FOREVER, ROW_FROM, ROW_TO, Column
from cq_engine.delta.images import changes_sql, history_sql, net_sql
from cq_engine.refresh.source_rows import row_versions
from cq_engine.spark.arrow_io import from_arrow, to_arrow
from cq_engine.spark.sql import fresh_name, run_sql
from cq_engine.storage.file_look_ups import restriction
from cq_engine.storage.reader import _overlay
from cq_engine.storage.resident_images import ResidentImage
from cq_engine.storage.rows import change_columns, conform, identity_columns, row_values
from cq_engine.storage.uncompacted_log import UncompactedLog
from tests.oracle.plans import _quickly

NAN = float("nan")
KEYS: dict[str, list[list[Any]]] = {
    "int": [[0], [1], [-1], [2**31 - 1], [None]],
    "string": [[""], ["a"], ["A"], ["a "], ["é"], ["e\u0301"], [None]],
    "double": [[0.0, -0.0], [NAN], [1.5], [math.inf], [None]],
    "decimal(10,2)": [[Decimal("0.00")], [Decimal("1.10")], [Decimal("-99999999.99")], [None]],
    "binary": [[b""], [b"\x00"], [b"a"], [None]],
    "string collate UTF8_LCASE": [["a", "A"], ["ä", "Ä"], ["σ", "ς"], ["b "], ["b"], [None]],
    "struct<d:double,s:string collate UTF8_BINARY_RTRIM>": [
        [{"d": 0.0, "s": "x"}, {"d": -0.0, "s": "x "}], [{"d": NAN, "s": "X"}], [{"d": None, "s": "x"}], [None],
    ],
}  # fmt: skip
"""By type the values of keys, those that are equal together."""
VALUES = [0.0, -0.0, NAN, 1.0, None]
A, B = 3, 6


@dataclass(frozen=True)
class Log:
    """Histories of several tables in one, told apart by `g`: the image at 0 and the change rows of (0, B]."""

    table: VersionedTable
    base: pa.Table
    changes: pa.Table

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.table.physical_columns]

    def arrow(self, compressed: bool, b: int = B, a: int = A) -> UncompactedLog:
        rows = self.changes.filter(pa.compute.less_equal(self.changes[COMMIT_VERSION], b))
        return UncompactedLog.of(self.table, rows, a, b, compressed)


def generated(kind: str, seeds: Iterable[int]) -> Log:
    columns = (Column("g", "int"), Column("k", kind), Column("v", "double"))
    table = VersionedTable(1, "base", "t", columns, ("g", "k"))
    base: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    for seed in seeds:
        rng = random.Random(seed)
        alive = {
            n: (seed, rng.choice(k), rng.choice(VALUES))
            for n, k in enumerate(KEYS[kind])
            if rng.random() < 0.5
        }
        base += alive.values()
        for version in range(1, B + 1):
            for n, spellings in enumerate(KEYS[kind]):
                if rng.random() < 0.6:
                    continue
                new, old = (seed, rng.choice(spellings), rng.choice(VALUES)), alive.pop(n, None)
                if old is None:
                    changes.append((*new, INSERT, version))
                elif rng.random() < 0.4:
                    changes.append((*old, DELETE, version))
                    continue
                else:
                    changes += [(*old, UPDATE_PREIMAGE, version), (*new, UPDATE_POSTIMAGE, version)]
                alive[n] = new
        rng.shuffle(changes)
    names = [c.name for c in change_columns(table)]
    rows = (
        conform(pa.Table.from_pylist([dict(zip(names, row)) for row in base]), columns)
        if base
        else conform(pa.table({}), columns)
    )
    logged = [dict(zip(names, row)) for row in changes]
    return Log(
        table,
        rows,
        conform(pa.Table.from_pylist(logged), change_columns(table))
        if logged
        else conform(pa.table({}), change_columns(table)),
    )


def bag(rows: pa.Table) -> Counter[Any]:
    return Counter(row_values(rows))


def check_sql(log: Log, compressed: bool, run: Callable[[str], pa.Table]) -> None:
    """What SQL says, run over the relations `log` and `base`, is what Arrow says."""
    net = f"WITH net AS ({net_sql('log', log.names, log.table.identity, A, B, compressed)}) SELECT * FROM "
    arrow = log.arrow(compressed)
    found = run(f"{net}({changes_sql('net', log.names, A)})")
    assert bag(found) == bag(arrow.changes.select(found.column_names))
    for undo in (True, False):
        found = run(f"{net}({history_sql('base', 'net', log.names, log.table.identity, A, False, undo)})")
        assert bag(found) == bag(row_versions(arrow, log.base, undo).select(found.column_names))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from([k for k in KEYS if "collate" not in k]),
    st.lists(st.integers(0, 10**6), max_size=3, unique=True),
    st.booleans(),
)
def test_sql_and_arrow(kind: str, seeds: Sequence[int], compressed: bool) -> None:
    log = generated(kind, seeds)
    with duckdb.connect() as connection:
        connection.register("log", log.changes)
        connection.register("base", log.base)

        def run(text: str) -> pa.Table:
            found = connection.sql(_quickly(text)).to_arrow_table()
            kinds = {field.name: field.type for field in log.changes.schema}
            return pa.table(
                {
                    n: found[n].cast(kinds.get(n, pa.int32() if "weight" in n else pa.int64()))
                    for n in found.column_names
                }
            )

        check_sql(log, compressed, run)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(list(KEYS)), st.integers(0, 10**6), st.integers(0, B))
def test_images_in_arrow(kind: str, seed: int, version: int) -> None:
    """An image that is moved from version to version, and one that is made at once."""
    log = generated(kind, [seed])
    resident = ResidentImage(log.table.physical_columns, log.table.identity)
    resident.load(log.base, 0)
    for at in range(1, version + 1):
        rows = log.changes.filter(pa.compute.equal(log.changes[COMMIT_VERSION], at))
        resident.advance(rows, at)
    assert bag(log.arrow(False, version, version).image(log.base)) == bag(resident.rows())
    versions = row_versions(log.arrow(False, B, version), log.base, undo=True)
    valid = pa.compute.and_(
        pa.compute.less_equal(versions["_cq_from"], version), pa.compute.greater(versions["_cq_to"], version)
    )
    assert bag(versions.filter(valid).select(log.names)) == bag(resident.rows())


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from(list(KEYS)),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.integers(0, A),
)
def test_a_part_of_a_log_says_the_same(
    kind: str, seeds: Sequence[int], compressed: bool, ordered: bool, a: int
) -> None:
    """What moves in the interval, and what is known of some keys, without walking the history of the others."""
    log = generated(kind, seeds)
    if ordered:
        log = replace(log, changes=log.changes.sort_by(COMMIT_VERSION))
    whole = log.arrow(compressed, a=a)
    versions = whole.versions()
    moves = pc.or_(
        pc.not_equal(versions.column(ROW_FROM), BEFORE), pc.not_equal(versions.column(ROW_TO), FOREVER)
    )
    assert bag(whole.moving()) == bag(versions.filter(moves))
    rng = random.Random(seeds[0])
    rows = log.changes.select(log.names)
    keys = rows.filter(pa.array([rng.random() < 0.2 for _ in range(rows.num_rows)], pa.bool_()))
    part = whole.among(restriction(keys, identity_columns(log.table)), 0)
    assert part.rows.num_rows <= whole.rows.num_rows
    for few, all_ in (
        (part.touched, whole.touched),
        (part.without_image, whole.without_image),
        (part.absent(a), whole.absent(a)),
    ):
        assert few.holds(keys).tolist() == all_.holds(keys).tolist()


def test_a_part_of_a_log_is_smaller() -> None:
    log = generated("int", range(50))
    whole = log.arrow(compressed=False, a=B - 1)
    key = {"g": pa.array([7], pa.int32()), "k": pa.array([1], pa.int32())}
    assert 0 < whole.among(key, 0).rows.num_rows <= 2 * B
    assert whole.among(key, whole.rows.num_rows) is whole
    assert whole.among({"g": pa.array([2**40])}, 0) is whole, "no value of the column"


@pytest.mark.parametrize("kind", KEYS)
def test_spark_and_arrow(spark: SparkSession, kind: str) -> None:
    log = generated(kind, range(30))
    relations = {
        fresh_name("log"): from_arrow(spark, log.changes, change_columns(log.table)).coalesce(1),
        fresh_name("base"): from_arrow(spark, log.base, log.table.physical_columns).coalesce(1),
    }
    changes, base = relations

    def run(text: str) -> pa.Table:
        text = text.replace("FROM log", f"FROM {changes}").replace("FROM base", f"FROM {base}")
        return to_arrow(run_sql(spark, text, relations).coalesce(1))

    for compressed in (False, True):
        check_sql(log, compressed, run)
    image = _overlay(log.table, relations[base], relations[changes], False)
    assert bag(to_arrow(image.coalesce(1))) == bag(log.arrow(False, B, B).image(log.base))
