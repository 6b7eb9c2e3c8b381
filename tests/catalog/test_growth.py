"""What the catalog holds does not grow with the number of commits, where versions are forgotten."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from cq_engine.catalog import schema
from cq_engine.catalog.inline import InlineCache
from cq_engine.catalog.model import ChangeSet, DataFile, QueryStatus, RefreshRecord
from cq_engine.catalog.persist import REFRESHES
from cq_engine.catalog.store import Catalog
from cq_engine.core.errors import StorageError

COUNT = 300


def refresh(catalog: Catalog, sample: Any, version: int) -> None:
    with catalog.write() as unit:
        unit.add_changes(sample.log, version, version, sample.deltas(version, [version]))
        unit.set_status("Big", QueryStatus(version, "ACTIVE", "", sample.when(version)))
        unit.add_refresh(
            RefreshRecord("Big", version - 1, version, 1, 0, 0, "INCREMENTAL", 0.1, sample.when(version))
        )


def compact(catalog: Catalog, sample: Any, version: int) -> None:
    attempt = catalog.attempt("compact")
    file = DataFile(f"{attempt.directory(sample.orders, 'snapshot')}/{version}.parquet", version, 1)
    old = [f.path for f in catalog.layout(1, version).snapshot]
    with catalog.write(attempt) as unit:
        unit.advance_snapshot(sample.orders, version, [file], old)


def held(catalog: Catalog, table: sa.Table) -> int:
    with catalog._database.engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def grown(catalog: Catalog, sample: Any) -> Catalog:
    """With COUNT commits, each of them refreshed."""
    with catalog.write() as unit:
        unit.set_state(sample.state)
    for version in range(1, COUNT + 1):
        sample.commit(catalog, [version])
        refresh(catalog, sample, version)
    return catalog


def test_commits_and_refreshes_are_forgotten(open_catalog: Any, sample: Any) -> None:
    catalog = grown(open_catalog(), sample)
    compact(catalog, sample, COUNT - 10)
    follower = open_catalog(read_only=True)
    assert follower.version_at(sample.when(100)) == 100
    every = dict.fromkeys((1, 3, 4), COUNT - 5)
    catalog.forget(lambda: {1: COUNT - 5}, logs=True)
    assert held(catalog, schema.commits) == COUNT, "who asked for one table keeps what others have"
    catalog.forget(lambda: every, logs=True)
    assert held(catalog, schema.commits) <= 12
    assert held(catalog, schema.refreshes) == REFRESHES
    for known in (catalog, follower, open_catalog(read_only=True)):
        assert known.newest_version == COUNT
        assert known.version_at(sample.when(COUNT - 3)) == COUNT - 3
        assert known.version_at(sample.when(COUNT - 9)) == COUNT - 9
        assert known.version_at(sample.when(100)) == 1
        with pytest.raises(StorageError, match="no commit at"):
            known.version_at(sample.when(0))
        assert set(known.timestamps(0, COUNT)) == {1, *range(COUNT - 10, COUNT + 1)}


def test_a_refresh_that_somebody_may_ask_for_stays(open_catalog: Any, sample: Any) -> None:
    catalog = grown(open_catalog(), sample)
    catalog.forget(lambda: dict.fromkeys((1, 3, 4), 50), logs=True)
    assert [r.to_version for r in catalog.refreshes("big", COUNT)] == list(range(COUNT, 49, -1))


def test_memory_holds_no_rows_of_what_is_forgotten(open_catalog: Any, sample: Any) -> None:
    catalog = grown(open_catalog(), sample)
    compact(catalog, sample, COUNT - 10)
    before = {c.id: c for n in (1, 3, 4) for c in catalog.changes(n, 1, COUNT)}
    assert any(catalog.cached(c) is not None for c in before.values())
    catalog.forget(lambda: dict.fromkeys((1, 3, 4), COUNT - 5), logs=True)
    left = {c.id for n in (1, 3, 4) for c in catalog.changes(n, catalog.floor(n) + 1, COUNT)}
    assert [c for c in before.values() if c.id not in left and catalog.cached(c) is not None] == []


def test_small_rows_count_with_what_arrow_needs_for_them() -> None:
    cache = InlineCache(1_000_000)
    rows = pa.table({f"c{n}": [1, 2] for n in range(10)})
    sets = [ChangeSet(1, n, n, 2, frozenset({"INSERT"}), inline_id=n, id=n) for n in range(1000)]
    for each in sets:
        cache.put(each, rows)
    assert 50 < sum(cache.get(each) is not None for each in sets) < 100
