"""The process that is killed: `python -m tests.catalog.bucket_worker URL CATALOG` and the store's options as JSON, with CQ_FAULT
in the environment. Commits, publishing, compaction and vacuum of a warehouse in a bucket, without Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import pyarrow as pa

from cq_engine.catalog.delta_lake import Publisher
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.core.clock import SystemClock
from cq_engine.core.limits import Limits
from tests.catalog.conftest import Sample

SAMPLE = Sample()
LIMITS = Limits(
    published_files=3, published_file_bytes=100_000, checkpoint_commits=4, publish_tries=8, stray_hours=0
)


def opened(url: str, catalog: str, access: Mapping[str, str]) -> Catalog:
    """The warehouse, with the sample's definitions."""
    made = Catalog.open(url, url=catalog, clock=SystemClock(), limits=LIMITS, storage=access)
    if not made.state.tables:
        with made.write() as unit:
            unit.set_state(SAMPLE.state)
    return made


def keys_of(version: int) -> list[int]:
    """The keys that the commit of a version inserts."""
    return [version, version + 1000]


def work(catalog: Catalog, rounds: int) -> None:
    """Every third commit is a file, every fourth one is followed by a compaction."""
    publisher = Publisher(catalog)
    for _ in range(rounds):
        version = catalog.newest_version + 1
        if version % 3:
            SAMPLE.commit(catalog, keys_of(version))
        else:
            _load(catalog, version)
        publisher.publish()
        if version % 4 == 0:
            _compact(catalog)
            publisher.publish()
            catalog.forget(lambda: dict.fromkeys(catalog.view.layouts, catalog.newest_version))
            catalog.sweep()


def _load(catalog: Catalog, version: int) -> None:
    attempt = catalog.attempt("copy")
    path = f"{attempt.directory(SAMPLE.orders, 'snapshot')}/part-0.parquet"
    file = write_parquet(SAMPLE.plain(keys_of(version)), path, catalog.store, ["k"])
    with catalog.lock, catalog.write(attempt) as unit:
        unit.add_commit(version, SAMPLE.when(version))
        kinds = frozenset({"INSERT"})
        unit.add_change_files(SAMPLE.orders, version, version, [file], kinds, insert_only=True)


def _compact(catalog: Catalog) -> None:
    newest = catalog.newest_version
    attempt = catalog.attempt("compact")
    rows = pa.concat_tables([SAMPLE.plain(keys_of(v)) for v in range(1, newest + 1)])
    path = f"{attempt.directory(SAMPLE.orders, 'snapshot')}/part-0.parquet"
    file = write_parquet(rows, path, catalog.store, ["k"])
    old = [f.path for f in catalog.layout(1, newest).snapshot]
    with catalog.write(attempt) as unit:
        unit.advance_snapshot(SAMPLE.orders, newest, [file], old)


if __name__ == "__main__":
    work(opened(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])), 12)
