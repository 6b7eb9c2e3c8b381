"""Merges without Spark: batches of changes, files of a few rows, slices of a few files; every image stays what it was."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cq_engine
from cq_engine.catalog.flush import flush
from cq_engine.core.limits import Limits
from tests.limits import limit

SCHEMA = pa.schema([("k", pa.int32()), ("s", pa.string()), ("x", pa.int64()), ("op", pa.string())])
Image = dict[tuple[int, str], int]


def _batch(rng: random.Random, rows: Image, inserts_only: bool) -> pa.Table:
    """Changes of a random kind, which `rows` follows."""
    found: list[dict[str, Any]] = []
    for _ in range(rng.randrange(1, 40)):
        k, s, x = rng.randrange(30), rng.choice("pqrs"), rng.randrange(100)
        there = (k, s) in rows
        op = "I" if not there else rng.choice("UUD")
        if inserts_only and op != "I":
            continue
        found.append({"k": k, "s": s, "x": x, "op": op})
        if op == "D":
            del rows[k, s]
        else:
            rows[k, s] = x
    return pa.Table.from_pylist(found, schema=SCHEMA)


def _image(engine: cq_engine.Engine, version: int) -> Image:
    table = engine.catalog.state.tables["t"].storage
    keys = [{"k": k, "s": s} for k in range(30) for s in "pqrs"]
    wanted = pa.Table.from_pylist(keys, schema=pa.schema(list(SCHEMA)[:2]))
    found = engine.reader.lookup(table, version, wanted).to_pylist()
    assert len({(row["k"], row["s"]) for row in found}) == len(found)
    return {(row["k"], row["s"]): row["x"] for row in found}


@pytest.mark.parametrize("cluster", ["", " CLUSTER BY (s)", " CLUSTER BY (x)"])
@pytest.mark.parametrize("seed", range(3))
def test_random_batches(warehouse: Path, seed: int, cluster: str) -> None:
    rng = random.Random(seed)
    limits = Limits(small_rows=-1, snapshot_file_rows=8, merge_rows=rng.choice([-1, 16, 40]))
    rows: Image = {}
    images: dict[int, Image] = {}
    merged = kept = 0
    with cq_engine.connect(
        warehouse, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as engine:
        engine.execute(f"CREATE TABLE t (k INT, s STRING, x BIGINT, PRIMARY KEY (k, s)){cluster}")
        table = engine.catalog.state.tables["t"].storage
        for _ in range(15):
            limit(engine, inline_bytes=0 if rng.random() < 0.5 else 1_000_000)
            batch = _batch(rng, rows, inserts_only=rng.random() < 0.3)
            if batch.num_rows:
                engine.apply_changes({"t": batch})
            version = engine.catalog.newest_version
            images[version] = dict(rows)
            if rng.random() < 0.3:
                flush(engine.catalog)
            if rng.random() < 0.5:
                layout = engine.catalog.layout(table.id, version)
                at = version if rng.random() < 0.7 else rng.randint(layout.base, version)
                if not engine.compactor.merge(table, at):
                    continue
                merged += 1
                now = {file.path for file in engine.catalog.layout(table.id, version).snapshot}
                kept += len(now & {file.path for file in layout.snapshot})
                assert {at: _image(engine, at) for at in images if at} == {
                    v: i for v, i in images.items() if v
                }
        assert _image(engine, version) == rows
        assert merged > 2
        assert engine._spark_session.started is None
    assert kept > 0 or cluster
