"""A warehouse in a bucket that delays, fails and throttles: published, compacted, vacuumed, and killed in the midst of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable

from cq_engine.catalog import delta_lake
from cq_engine.catalog.delta_compaction import strays
from cq_engine.catalog.delta_lake import Publisher
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from tests.catalog.bucket_worker import SAMPLE, keys_of, opened, work
from tests.object_store import Faults, ObjectStoreServer

ROOT = Path(__file__).parents[2]
KILLS = ("file.written:2", "publish.committed:4", "vacuum.remove")


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    fresh: Callable[[], str] = request.getfixturevalue("fresh_postgres")
    return fresh()


def delta(catalog: Catalog, root: str) -> DeltaTable:
    return DeltaTable(catalog.store.uri(root), storage_options=catalog.store.delta_options)


def check(catalog: Catalog) -> None:
    """What is published is what is committed, and no file is there that nobody names."""
    newest = catalog.newest_version
    log = delta(catalog, "changes/orders")
    rows = [
        (row["k"], row["_commit_version"], row["_commit_timestamp"])
        for row in log.to_pyarrow_table().to_pylist()
    ]
    wanted = [
        (k, v, SAMPLE.when(v).astimezone(timezone.utc)) for v in range(1, newest + 1) for k in keys_of(v)
    ]
    assert sorted(rows) == sorted(wanted)
    snapshot = catalog.layout(1, newest).base
    table = delta(catalog, "tables/orders").to_pyarrow_table()
    assert sorted(table["k"].to_pylist()) == sorted(k for v in range(1, snapshot + 1) for k in keys_of(v))
    catalog.disown(strays(catalog))
    catalog.sweep()
    named = {f"changes/orders/{p}" for p in pa.table(log.get_add_actions())["path"].to_pylist()}
    layout = catalog.layout(1, newest)
    named |= {file.path for file in layout.snapshot}
    named |= {file.path for changes in catalog.changes(1, 1, newest) for file in changes.files}
    there = {
        f.path for f in catalog.store.list("") if f.path.endswith(".parquet") and "_delta_log" not in f.path
    }
    assert named <= there
    history = {
        path for path in there - named if "/merged-" in path or "/flush-" in path or "/inserts-" in path
    }
    assert there - named == history, "what older versions of the published log name"


def test_killed_in_a_bucket(objects: ObjectStoreServer, bucket_url: str, url: str) -> None:
    objects.fault(Faults(delay=0.001, fail=0.01, throttle=0.01, seed=5))
    arguments = [
        sys.executable,
        "-m",
        "tests.catalog.bucket_worker",
        bucket_url,
        url,
        json.dumps(objects.access),
    ]
    for fault in KILLS:
        done = subprocess.run(
            arguments,
            cwd=ROOT,
            env={**os.environ, "CQ_FAULT": fault},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, f"{fault}: {done.stderr[-2000:]}"
        catalog = opened(bucket_url, url, objects.access)
        try:
            Publisher(catalog).publish()
            check(catalog)
        finally:
            catalog.close()
    assert objects.counts()["failed"] > 0


@pytest.mark.parametrize("after", [False, True])
def test_an_answer_that_is_lost(
    objects: ObjectStoreServer, bucket_url: str, url: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Delta commit that others came before, or that came through though the store said that it did not: a merged file
    that the log names stays."""
    catalog = opened(bucket_url, url, objects.access)
    commit = delta_lake.Publisher._commit
    lost: list[str] = []

    def losing(self: Publisher, handle: DeltaTable, root: str, actions: list[object], version: int) -> None:
        merged = any("merged-" in getattr(action, "path", "") for action in actions)
        if merged and not lost:
            lost.append(root)
            if after:
                commit(self, handle, root, actions, version)  # type: ignore[arg-type]
            else:
                delta(catalog, root).create_write_transaction(
                    [], "append", handle.schema(), commit_properties=CommitProperties()
                )
            raise delta_lake.CommitFailedError("a version that is there")
        commit(self, handle, root, actions, version)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_lake.Publisher, "_commit", losing)
    work(catalog, 9)
    assert lost == ["changes/orders"]
    check(catalog)
    catalog.close()


def test_files_that_nobody_told_of(objects: ObjectStoreServer, bucket_url: str, url: str) -> None:
    """Of a task that was repeated; those of an attempt that goes on stay."""
    catalog = opened(bucket_url, url, objects.access)
    work(catalog, 5)
    attempt, going_on = catalog.attempt("copy"), catalog.attempt("copy")
    paths = {
        each: f"{each.directory(SAMPLE.orders, 'snapshot')}/part-0.parquet" for each in (attempt, going_on)
    }
    written = {
        each: write_parquet(SAMPLE.plain([9]), path, catalog.store, ["k"]) for each, path in paths.items()
    }
    stray = f"{attempt.directory(SAMPLE.block, 'log')}/0001/part-0.parquet"
    write_parquet(SAMPLE.plain([9]), stray, catalog.store)
    with catalog.write(attempt) as unit:
        unit.add_commit(6, SAMPLE.when(6))
        kinds = frozenset({"INSERT"})
        unit.add_change_files(SAMPLE.orders, 6, 6, [written[attempt]], kinds, insert_only=True)
    assert stray in strays(catalog)
    catalog.disown(strays(catalog))
    catalog.sweep()
    assert catalog.store.having([stray, *paths.values()]) == list(paths.values())
    going_on.abandon()
    assert catalog.store.having([stray, *paths.values()]) == [paths[attempt]]
    catalog.close()
