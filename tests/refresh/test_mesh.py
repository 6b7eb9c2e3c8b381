"""Queries with a mesh join: what their refreshes read, and what EXPLAIN says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CQError, Engine
from cq_engine.core.columns import Column
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.window import Image
from cq_engine.refresh.look_up_costs import LookUpCosts
from tests.accumulated import accumulated, rows
from tests.refresh.meshed import JOIN, SHAPES, SMALL_PAGES, change, create, engine, hows, told

__all__ = ["engine"]


_SHORT = {
    ("left", "COMPRESSED"), ("chain", "TRANSACTIONAL"), ("counted", "COMPRESSED"), ("absent", "TRANSACTIONAL"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        pytest.param(shape, mode, marks=() if (shape, mode) in _SHORT else pytest.mark.long)
        for shape in SHAPES
        for mode in ("TRANSACTIONAL", "COMPRESSED")
    ],
)
def test_deltas_are_those_of_the_result(engine: Engine, shape: str, mode: str) -> None:
    create(engine, "q", SHAPES[shape], "join = 'mesh', memory = '64 KB'", mode)
    for n in range(4):
        change(engine, n)
        if n != 1:
            engine.refresh("q")
            assert "mesh" in hows(engine)
            assert accumulated(engine, "q") == rows(engine, SHAPES[shape])
        if n == 2:
            engine.compact("r")
            engine.compact("s")


def test_several_tables_share_the_budget(engine: Engine) -> None:
    memory = 128 * 1024
    create(engine, "q", SHAPES["chain"], "join = 'mesh', memory = '128 KB', order = 'arrival'")
    for n in range(2):
        change(engine, n)
        engine.refresh("q")
    assert accumulated(engine, "q") == rows(engine, SHAPES["chain"])
    meshes = [mesh for _, mesh in engine.queries.refresher.meshes.kept["q"]._tables.values()]
    assert len(meshes) >= 2
    assert {mesh.memory for mesh in meshes} == {memory // len(meshes)}
    assert all(0 < mesh.counters.peak <= mesh.memory for mesh in meshes if mesh.counters.reads)


def _joins(engine: Engine) -> list[str]:
    """What EXPLAIN says of the meshes."""
    return [line for line in told(engine, "EXPLAIN CONTINUOUS QUERY q").splitlines() if "mesh of" in line]


def test_tables_that_are_not_scanned_take_nothing_of_the_budget(engine: Engine) -> None:
    """Whatever EXPLAIN has asked, and as often as it does."""
    create(engine, "q", JOIN, "join = 'mesh', memory = '256 KB'")
    first = _joins(engine)
    assert _joins(engine) == first
    assert engine.queries.refresher.meshes.kept["q"]._tables == {}
    change(engine, 1)
    engine.execute("DELETE FROM r WHERE k = 299")
    engine.refresh("q")
    kept = engine.queries.refresher.meshes.kept["q"]._tables
    before = {number: (mesh.memory, mesh.key_bytes) for number, (_, mesh) in kept.items()}
    assert sum(memory for memory, _ in before.values()) <= 256 * 1024
    _joins(engine)
    assert {number: (mesh.memory, mesh.key_bytes) for number, (_, mesh) in kept.items()} == before


@pytest.mark.parametrize(
    "condition", ["r.k = s.k + 1", "concat(r.note, 'x') = concat('n', s.x % 9, 'x')", "r.k % 50 <=> s.k"]
)
@pytest.mark.parametrize("join", ["mesh", "auto"])
def test_equalities_of_expressions(engine: Engine, condition: str, join: str) -> None:
    text = f"SELECT s.id, r.k, r.note FROM s JOIN r ON {condition} AND s.id % 2 = 0"
    create(engine, "q", text, f"join = '{join}', memory = '64 KB'")
    for n in range(2):
        change(engine, n)
        engine.refresh("q")
    assert accumulated(engine, "q") == rows(engine, text)


def test_explain_says_which_and_why(engine: Engine) -> None:
    create(engine, "q", JOIN, "join = 'mesh', memory = '1 MB'")
    change(engine, 1)
    text = told(engine, "EXPLAIN CONTINUOUS QUERY q")
    found = re.search(
        r"r: mesh, WITH \(join = 'mesh'\) asks for it; mesh of (\d+) pages, (\d+) at a time", text
    )
    assert found, text
    assert int(found[1]) == 16
    assert re.search(r"predicted \d+ keys/s, cycle \d+\.\d+ s \(factors not measured yet\)", text)
    text = told(engine, "EXPLAIN ANALYZE CONTINUOUS QUERY q")
    assert re.search(r"r: \d+ keys in \d+ batches of the window, \d+ keys/s \(predicted \d+\)", text), text
    assert re.search(r"pages in \d+ reads, .* memory at most", text)
    document = json.loads(told(engine, "EXPLAIN (FORMAT JSON) CONTINUOUS QUERY q"))
    assert any("factors measured" in line for line in document["joins"]), document


def test_without_the_option_nothing_is_said_of_it(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {JOIN}")
    text = told(engine, "EXPLAIN CONTINUOUS QUERY q")
    assert "mesh" not in text
    change(engine, 1)
    engine.refresh("q")
    assert engine.queries.refresher.meshes.kept == {}


def test_auto_takes_what_costs_less(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what look-ups and scans have cost so far, where columns have copies and where not."""
    create(engine, "q", JOIN, "join = 'auto'")
    change(engine, 0)
    engine.refresh("q")
    mesh = engine.queries.refresher.meshes.kept["q"]
    table = engine.catalog.state.tables["r"].storage
    for n, (copied, cost, how) in enumerate(
        [
            (1.0, LookUpCosts(key=1e-9), "look-up"),
            (1.0, LookUpCosts(key=10.0), "mesh"),
            (0.0, LookUpCosts(page=1e-9), "look-up"),
            (0.0, LookUpCosts(page=10.0), "mesh"),
        ]
    ):
        monkeypatch.setattr(mesh, "_copied", lambda *_, copied=copied: copied)
        mesh._costs[table.id] = cost
        change(engine, n + 1)
        engine.refresh("q")
        reads = engine.queries.refresher.reports["q"].reads
        assert {r.how for r in reads if r.what == "r" and r.how in ("mesh", "look-up")} == {how}
        assert accumulated(engine, "q") == rows(engine, JOIN)
    assert "by look-ups" in told(engine, "EXPLAIN CONTINUOUS QUERY q")


@pytest.mark.parametrize(("copied", "counts"), [(1.0, 0), (0.0, 1)])
def test_auto_counts_pages_at_most_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, copied: float, counts: int
) -> None:
    """Not at all where look-ups in copies are cheaper than a page of each file; once to learn what a page costs."""
    create(engine, "q", JOIN, "join = 'auto'")
    change(engine, 0)
    engine.refresh("q")
    mesh, counted, right = engine.queries.refresher.meshes.kept["q"], [], Pages.needed
    for name in ("r", "s"):
        mesh._costs[engine.catalog.state.tables[name].storage.id] = LookUpCosts(1e-9, 1e-9, 1e-9)

    def needed(self: Pages, image: Image, *asked: Any) -> Any:
        counted.append(image)
        return right(self, image, *asked)

    monkeypatch.setattr(Pages, "needed", needed)
    monkeypatch.setattr(mesh, "_copied", lambda *_: copied)
    change(engine, 1)
    engine.refresh("q")
    assert len(counted) == counts * len(set(counted))
    assert bool(counted) == bool(counts)
    assert accumulated(engine, "q") == rows(engine, JOIN)


def test_a_scan_ends_with_the_engine(warehouse: Path, spark: SparkSession) -> None:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=SMALL_PAGES) as opened:
        opened.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT)")
        opened.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
        opened.execute("INSERT INTO r SELECT id, 'n' FROM range(100)")
        opened.compact("r")
        opened.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND WITH (join = 'mesh') AS {JOIN}")
        opened.execute("INSERT INTO s VALUES (1, 1)")
        opened.refresh("q")
        meshes = opened.queries.refresher.meshes.kept["q"]._tables
    for _, mesh in meshes.values():
        with pytest.raises(CQError, match="was ended"):
            mesh.rows(Image([]), None, {"k": pa.array([1])}, (Column("k", "bigint"),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("join = 'hash'", "option join = hash is unknown"),
        ("join = 'mesh', memory = 'much'", "memory = 'much' is no size"),
        ("join = 'mesh', memory = '1 KB'", "memory = '1 KB' is too little for a mesh join"),
        ("join = 'mesh', order = 'any'", "option order = any is unknown"),
        ("memory = '1 MB'", "memory is an option of a mesh join, and q has none"),
        ("order = 'arrival'", "order is an option of a mesh join, and q has none"),
        ("join = 'mesh', refresh = 'full'", "join = 'mesh' is for queries that look rows up, and q is FULL"),
        ("join = 'mesh', form = 'recompute'", "join = 'mesh' and form = recompute contradict each other"),
    ],
)
def test_options_that_make_no_sense(engine: Engine, options: str, message: str) -> None:
    with pytest.raises(AnalysisError, match=re.escape(message)):
        create(engine, "q", JOIN, options, "COMPRESSED")


def test_options_can_be_changed(engine: Engine) -> None:
    create(engine, "q", JOIN, "join = 'mesh'")
    change(engine, 1)
    engine.refresh("q")
    before = engine.queries.refresher.meshes.kept["q"]
    engine.execute("ALTER CONTINUOUS QUERY q SET WITH (memory = '128 KB')")
    change(engine, 2)
    engine.refresh("q")
    assert engine.queries.refresher.meshes.kept["q"] is not before
    engine.execute("ALTER CONTINUOUS QUERY q SET WITH (join = 'look_up')")
    change(engine, 3)
    engine.refresh("q")
    assert {read.how for read in engine.queries.refresher.reports["q"].reads} & {"mesh", "look-up"} == {
        "look-up"
    }
    assert accumulated(engine, "q") == rows(engine, JOIN)
