"""Generated histories that are merged, published, forgotten and opened again: what is kept is whole. Without Spark."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from tests.limits import limit
from tests.maintenance.histories import CREATE, History


class Somebody:
    """Holds a version."""


def on_disk(engine: Engine) -> set[str]:
    root = Path(engine.catalog.warehouse)
    found = (path for path in root.rglob("*.parquet") if "_delta_log" not in path.parts)
    return {path.relative_to(root).as_posix() for path in found}


def in_catalog(engine: Engine) -> set[str]:
    layouts = engine.catalog.view.layouts.values()
    logs = {file.path for layout in layouts for c in layout.changes for file in c.files}
    return logs | {path for layout in layouts for path in layout.files}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_held_stays(seed: int, warehouse: Path) -> None:
    rng, somebody = random.Random(seed), Somebody()
    limits = Limits(snapshot_file_rows=8, small_rows=rng.choice([-1, DEFAULT_LIMITS.small_rows]))
    engine = cq_engine.connect(warehouse, scheduler=False, limits=limits)
    engine.execute(CREATE)
    history, held, floor, commits = History(engine, rng), 0, 0, 0
    for _ in range(14):
        limit(engine, inline_bytes=rng.choice([0, 1_000_000]))
        newest = history.commit(inserts_only=rng.random() < 0.4)
        commits += 1
        if rng.random() < 0.5:
            engine.compactor.merge(history.table)
        if rng.random() < 0.3:
            engine.publish()
        if rng.random() < 0.5:
            held = rng.randint(held, newest)
            engine.services.read_holds.hold(somebody, held)
            engine.vacuum(retain="0 hours")
            floor = engine.catalog.floor(history.table.id)
            assert floor <= held
            assert in_catalog(engine) <= on_disk(engine)
            history.images = {v: image for v, image in history.images.items() if v >= floor}
        if rng.random() < 0.2:
            engine.close()
            engine = history.engine = cq_engine.connect(warehouse, scheduler=False, limits=limits)
            engine.services.read_holds.hold(somebody, held)
            assert engine.catalog.floor(history.table.id) == floor
        history.check()
    engine.compactor.merge(history.table)
    engine.services.read_holds.release(somebody)
    engine.vacuum(retain="0 hours")
    assert engine.catalog.floor(history.table.id) == newest
    log = DeltaTable(f"{warehouse}/changes/t").to_pyarrow_table()
    assert len(set(log["_commit_version"].to_pylist())) == commits, "the published log is complete"
    published = {f"changes/t/{path}" for path in _named(DeltaTable(f"{warehouse}/changes/t"))}
    assert on_disk(engine) - published == in_catalog(engine) - published, (
        "and all that is left of what was forgotten"
    )
    engine.close()


def _named(table: DeltaTable) -> list[str]:
    return [uri.rsplit("/changes/t/", 1)[1] for uri in table.file_uris()]
