"""Changes that executors put in order, against the driver's: versions, rows of every version, kinds, errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits

DDL = "CREATE TABLE {} (a INT, b STRING, x DOUBLE, m MAP<STRING, INT>, v DECIMAL(10, 2) NOT NULL, PRIMARY KEY (a, b))"
SCHEMA = pa.schema([
    ("op", pa.string()), ("a", pa.int32()), ("b", pa.string()), ("x", pa.float64()),
    ("m", pa.map_(pa.string(), pa.int32())), ("v", pa.decimal128(10, 2)), ("txn", pa.string()), ("seq", pa.int64()),
])  # fmt: skip
ARGUMENTS: dict[str, Any] = {"op": "op", "transaction": "txn", "order": "seq"}
NAMES = ("t", "u")


@pytest.fixture
def engines(warehouse: Path, spark: SparkSession) -> Iterator[tuple[cq_engine.Engine, cq_engine.Engine]]:
    limits = (Limits(), Limits(apply_rows=3, staged_file_rows=7))
    made = [
        cq_engine.connect(warehouse / str(n), spark=spark, scheduler=False, limits=each)
        for n, each in enumerate(limits)
    ]
    for engine in made:
        for name in NAMES:
            engine.execute(DDL.format(name))
    yield made[0], made[1]
    for engine in made:
        engine.close()


def batch(rng: random.Random, there: set[tuple[str, int, str]], wrong: bool) -> dict[str, pa.Table]:
    """Changes of both tables that fit what is there, but for one, perhaps."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    places = list(range(rng.randrange(8, 19)))
    error = rng.choice(places) if wrong else -1
    for seq in places:
        name, a, b = rng.choice(NAMES), rng.randrange(4), rng.choice("pq")
        exists = (name, a, b) in there
        op = rng.choice(["U", "U", "D", "S", "P", "K"] if exists else ["I", "I", "S", "K"])
        if seq == error:
            op = "I" if exists else "U"
        found[name].append(
            {
                "op": op, "a": a, "b": b, "x": rng.choice([0.0, -0.0, float("nan"), 1.5, None]),
                "m": rng.choice([None, [("k", 1)], [("k", 1), ("l", 2)], [("l", 2), ("k", 1)]]),
                "v": rng.choice(["1.00", "2.50"]), "txn": f"t{seq // 6}", "seq": seq,
            }
        )  # fmt: skip
        there.discard((name, a, b)) if op in "DK" else there.add((name, a, b))
    shuffled = {name: rng.sample(rows, len(rows)) for name, rows in found.items()}
    casts = {name: [{**r, "v": pa.scalar(r["v"]).cast(pa.decimal128(10, 2)).as_py()} for r in rows] for name, rows in shuffled.items()}  # fmt: skip
    return {name: pa.Table.from_pylist(rows, SCHEMA) for name, rows in casts.items()}


def outcome(engine: cq_engine.Engine, changes: dict[str, Any]) -> Any:
    try:
        done = engine.apply_changes(changes, **ARGUMENTS)
    except cq_engine.ConstraintError as error:
        return error.message
    return done


def images(engine: cq_engine.Engine) -> list[Any]:
    found: list[Any] = []
    for version in range(1, engine.catalog.newest_version + 1):
        for name in NAMES:
            rows = engine.execute(
                f"SELECT a, b, x, map_entries(m), v FROM {name} VERSION AS OF {version}"
            ).fetchall()
            found.append((version, name, sorted(map(repr, rows))))
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 10))])
def test_random_batches(engines: tuple[cq_engine.Engine, cq_engine.Engine], seed: int) -> None:
    rng = random.Random(seed)
    there: set[tuple[str, int, str]] = set()
    failed = 0
    for step in range(4):
        known, wrong = set(there), step == 2
        changes = batch(rng, known, wrong)
        frames = {
            name: engines[1].spark.createDataFrame(each) if step % 2 else each
            for name, each in changes.items()
        }
        driver, executors = outcome(engines[0], changes), outcome(engines[1], frames)
        assert executors == driver
        if isinstance(driver, str):
            failed += 1
        else:
            there = known
    assert failed == 1
    assert images(engines[1]) == images(engines[0])
    for name in NAMES:
        sets = engines[1].catalog.changes(engines[1].catalog.state.tables[name].storage.id, 1, 10**6)
        assert any(each.files for each in sets)


def test_null_in_a_column_that_has_none(engines: tuple[cq_engine.Engine, cq_engine.Engine]) -> None:
    rows = [{"op": "I", "a": n, "b": "p", "v": None, "txn": "t", "seq": n} for n in range(5)]
    changes = {"t": pa.Table.from_pylist(rows, SCHEMA)}
    driver, executors = (outcome(engine, changes) for engine in engines)
    assert driver == executors
    assert "must not be NULL" in driver
    assert engines[1].execute("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_what_only_the_driver_applies(engines: tuple[cq_engine.Engine, cq_engine.Engine]) -> None:
    _, engine = engines
    engine.execute("CREATE TABLE plain (a INT)")
    rows = pa.table({"op": ["I"] * 5, "a": pa.array(range(5), pa.int32())})
    with pytest.raises(cq_engine.AnalysisError, match="more than 3 changes of plain") as caught:
        engine.apply_changes({"plain": rows})
    assert "no PRIMARY KEY" in caught.value.detail
    changes = pa.Table.from_pylist(
        [{"op": "I", "a": n, "b": "p", "txn": str(n), "seq": n} for n in range(5)], SCHEMA
    )
    with pytest.raises(cq_engine.AnalysisError, match="more than 3 transactions"):
        engine.apply_changes({"t": changes}, **ARGUMENTS)
    assert engine.apply_changes({"plain": rows.slice(2)})


def test_transactions_with_equal_order_come_as_they_are_given(
    engines: tuple[cq_engine.Engine, cq_engine.Engine],
) -> None:
    """`order` counts anew in each transaction: the last of them has the last word."""
    ids = [f"t{n}" for n in random.Random(5).sample(range(100), 3)]
    rows = [
        {"op": "S", "a": a, "b": "p", "x": float(n), "v": None, "txn": each, "seq": 1}
        for n, each in enumerate(ids)
        for a in (1, 2)
    ]
    for row in rows:
        row["v"] = pa.scalar("1.00").cast(pa.decimal128(10, 2)).as_py()
    changes = {"t": pa.Table.from_pylist(rows, SCHEMA)}
    driver, executors = (outcome(engine, changes) for engine in engines)
    assert driver == executors
    assert images(engines[1]) == images(engines[0])
    assert engines[1].execute("SELECT DISTINCT x FROM t").fetchall() == [(2.0,)]


ONE = pa.scalar("1.00").cast(pa.decimal128(10, 2)).as_py()


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        pytest.param([("D", 7, ONE)], "no row with this key", id="changes nothing, and is wrong"),
        pytest.param(
            [("I", 8, ONE), ("D", 8, ONE), ("U", 8, ONE), ("D", 8, ONE)],
            "no row with this key",
            id="wrong in the middle",
        ),
        pytest.param([("I", 1, ONE), ("U", 1, ONE)], "key exists already", id="wrong at first"),
        pytest.param(
            [("I", 8, None), ("I", 1, ONE), ("D", 7, ONE)],
            "key exists already",
            id="NULL before what is wrong",
        ),
        pytest.param([("D", 7, ONE), ("I", 1, ONE)], "no row with this key", id="the first of two"),
        pytest.param(
            [("S", 8, None), ("S", 9, None), ("D", 8, ONE)], "must not be NULL", id="NULL in the second row"
        ),
        pytest.param([("D", 1, ONE), ("I", 1, ONE)], "", id="nothing is wrong, and one changes nothing"),
    ],
)
def test_the_first_step_that_does_not_fit_is_told_of(
    engines: tuple[cq_engine.Engine, cq_engine.Engine], steps: list[tuple[str, int, Any]], word: str
) -> None:
    """Of the checks that are made in one pass, by the word of the driver that makes them one by one."""
    before = [{"op": "I", "a": n, "b": "p", "v": ONE, "txn": "s", "seq": n} for n in range(5)]
    found = [{"op": op, "a": a, "b": "p", "v": v, "txn": "t", "seq": n} for n, (op, a, v) in enumerate(steps)]
    found += [
        {"op": "U", "a": n, "b": "p", "x": 2.0, "v": ONE, "txn": "u", "seq": 10 + n} for n in range(2, 5)
    ]
    for rows in (before, found):
        changes = {"t": pa.Table.from_pylist(rows, SCHEMA)}
        driver, executors = (outcome(engine, changes) for engine in engines)
        assert driver == executors
    assert word in driver if word else not isinstance(driver, str)
    assert images(engines[1]) == images(engines[0])


def test_null_that_does_not_outlive_its_transaction(
    engines: tuple[cq_engine.Engine, cq_engine.Engine],
) -> None:
    one = pa.scalar("1.00").cast(pa.decimal128(10, 2)).as_py()
    rows = [
        {"op": "I", "a": 1, "b": "p", "v": None, "txn": "t", "seq": 1},
        {"op": "U", "a": 1, "b": "p", "v": one, "txn": "t", "seq": 2},
        {"op": "S", "a": 2, "b": "p", "v": None, "txn": "t", "seq": 3},
        {"op": "D", "a": 2, "b": "p", "v": None, "txn": "t", "seq": 4},
        {"op": "I", "a": 3, "b": "p", "v": one, "txn": "t", "seq": 5},
    ]
    changes = {"t": pa.Table.from_pylist(rows, SCHEMA)}
    driver, executors = (outcome(engine, changes) for engine in engines)
    assert driver == executors
    assert not isinstance(driver, str), driver
    assert images(engines[1]) == images(engines[0])
