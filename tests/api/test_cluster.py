"""A standalone cluster, a bucket and PostgreSQL: what is on one machine in other tests is on several here."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import cluster, run_program
from tests.object_store import ObjectStoreServer


@pytest.mark.postgres
@pytest.mark.parametrize("histories", [0, pytest.param(20, marks=pytest.mark.long)])
def test_the_delta_law_and_copy(
    tmp_path: Path, objects: ObjectStoreServer, postgres_server: str, histories: int
) -> None:
    """By executors of two workers, whose temporary directories are their own: they have no file in common but the input.
    Random histories are for the long runs."""
    files = tmp_path / "input"
    files.mkdir()
    for part in range(2):
        ids = range(200 * part, 200 * part + 200)
        rows = pa.table({"id": pa.array(ids, pa.int32()), "g": pa.array([n % 7 for n in ids], pa.int32()),
                         "s": [f"text {n}" for n in ids]})  # fmt: skip
        pq.write_table(rows, files / f"{part}.parquet")
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster") as made:
        words = (made.url, str(objects.port), postgres_server, str(files), str(histories))
        done = run_program("tests.on_cluster", *words, timeout=7200 if histories else 1200)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["executors"] == 2
    assert found["refreshes"] >= 3 * histories
