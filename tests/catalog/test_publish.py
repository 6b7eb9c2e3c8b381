"""The open face: what other readers of Delta Lake see."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cq_engine.catalog import flush as flush_module
from cq_engine.catalog.delta_files import delta_schema
from cq_engine.catalog.delta_lake import APPLICATION, Publisher
from cq_engine.catalog.flush import flush
from cq_engine.catalog.model import Table, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.errors import StorageError
from tests.catalog.conftest import vacuum
from tests.catalog.published import bulk, by_deltalake, compact, logged, read

Open = Callable[..., Catalog]


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """Publishing does not depend on the database."""
    return None


@pytest.fixture
def publisher(catalog: Catalog) -> Publisher:
    return Publisher(catalog)


class TestLogs:
    def test_small_commits_become_one_file(self, catalog: Catalog, publisher: Publisher, sample: Any) -> None:
        expected = pa.concat_tables([sample.rows(v, [v, v + 100]) for v in range(1, 21)])
        for version in range(1, 21):
            sample.commit(catalog, [version, version + 100])
        assert publisher.pending() == (20, 40)
        assert publisher.publish() == 1
        assert publisher.pending() == (0, 0)
        assert read(catalog, "changes/orders") == logged(sample, expected)
        (changes,) = catalog.layout(1, 20).changes
        assert (changes.low, changes.high, changes.rows, len(changes.files)) == (1, 20, 40, 1)
        cached = catalog.cached(changes)
        assert cached is not None
        assert cached.equals(expected)

    def test_publishing_again_adds_nothing(self, catalog: Catalog, publisher: Publisher, sample: Any) -> None:
        sample.commit(catalog, [1])
        assert publisher.publish() == 1
        assert publisher.publish() == 0
        assert Publisher(catalog).publish() == 0
        sample.commit(catalog, [2])
        assert publisher.publish() == 1
        table = DeltaTable(f"{catalog.warehouse}/changes/orders")
        assert (table.transaction_version(APPLICATION), len(table.file_uris())) == (2, 2)
        assert table.history(1)[0]["cq_engine.commit_version"] == 2

    def test_bulk_inserts_are_published_as_changes(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        bulk(catalog, sample, [1, 2])
        sample.commit(catalog, [1], "delete")
        bulk(catalog, sample, [3])
        publisher.publish()
        expected = [sample.rows(1, [1, 2]), sample.rows(2, [1], "delete"), sample.rows(3, [3])]
        assert read(catalog, "changes/orders") == logged(sample, pa.concat_tables(expected))

    def test_query_deltas(self, catalog: Catalog, publisher: Publisher, sample: Any) -> None:
        sample.commit(catalog, [1, 2])
        with catalog.write() as unit:
            unit.add_changes(sample.log, 1, 1, sample.deltas(1, [1, 2]))
            unit.add_changes(sample.block, 1, 1, sample.deltas(1, [1]).drop(["_sequence", "_refresh_time"]))
        publisher.publish()
        assert read(catalog, "deltas/big") == logged(sample, sample.deltas(1, [1, 2]))
        (state,) = catalog.layout(4, 1).changes
        assert state.files[0].path.startswith("data/state-4/")

    def test_rows_without_a_key_show_their_identity(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        keyless = replace(sample.orders, id=8, name="keyless", identity=("_row_id",), cluster_by=())
        table = replace(sample.state.tables["orders"], name="keyless", storage=keyless, primary_key=None)
        rows = sample.rows(1, [7]).append_column("_row_id", pa.array([55], pa.int64()))
        with catalog.write() as unit:
            unit.set_state(replace(sample.state, tables={"keyless": table}))
            unit.add_commit(1, sample.when(1))
            unit.add_changes(keyless, 1, 1, rows)
        publisher.publish()
        assert read(catalog, "changes/keyless") == logged(sample, rows)
        assert read(catalog, "tables/keyless") == []
        assert pl.read_delta(f"{catalog.warehouse}/tables/keyless").columns == ["k", "v"]

    def test_columns_added_later(self, catalog: Catalog, publisher: Publisher, sample: Any) -> None:
        bulk(catalog, sample, [1])
        publisher.publish()
        sample.commit(catalog, [2])
        wider = replace(sample.orders, columns=(*sample.orders.columns, Column("w", "int")))
        table = replace(sample.state.tables["orders"], storage=wider)
        with catalog.write() as unit:
            unit.set_state(replace(sample.state, tables={"orders": table}))
        rows = sample.rows(3, [3]).append_column("w", pa.array([9], pa.int32()))
        with catalog.write() as unit:
            unit.add_commit(3, sample.when(3))
            unit.add_changes(wider, 3, 3, rows)
        publisher.publish()
        compact(catalog, sample, [1, 2, 3])
        publisher.publish()
        for path in ("changes/orders", "tables/orders"):
            shown = pl.read_delta(f"{catalog.warehouse}/{path}").sort("k")
            assert shown.get_column("w").to_list() == [None, None, 9 if path == "changes/orders" else None]

    def test_types_that_delta_does_not_have(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        odd = VersionedTable(
            8, "base", "odd", (Column("k", "int"), Column("d", "interval day to second")), ("k",)
        )
        table = replace(sample.state.tables["orders"], name="odd", storage=odd)
        with catalog.write() as unit:
            unit.set_state(replace(sample.state, tables={"odd": table}))
        assert delta_schema(odd.columns) is None
        assert delta_schema([Column("s", "array<struct<a:interval day to second>>")]) is None
        assert publisher.publish() == 0
        assert not Path(catalog.warehouse, "changes/odd").exists()

    def test_while_others_commit(self, catalog: Catalog, publisher: Publisher, sample: Any) -> None:
        def commit_some() -> None:
            for _ in range(25):
                sample.commit(catalog, [1, 2])

        with ThreadPoolExecutor(3) as pool:
            writers = [pool.submit(commit_some) for _ in range(3)]
            while not all(writer.done() for writer in writers):
                publisher.publish()
                newest = catalog.newest_version
                assert sum(c.rows for c in catalog.layout(1, newest).changes) >= 2 * newest
            for writer in writers:
                writer.result()
        publisher.publish()
        expected = pa.concat_tables([sample.rows(v, [1, 2]) for v in range(1, 76)])
        assert read(catalog, "changes/orders") == logged(sample, expected)


class TestTables:
    def test_a_table_is_its_newest_snapshot(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        publisher.publish()
        assert read(catalog, "tables/orders") == []
        bulk(catalog, sample, [1, 2])
        bulk(catalog, sample, [3])
        publisher.publish()
        assert read(catalog, "tables/orders") == sample.plain([1, 2, 3]).to_pylist()
        sample.commit(catalog, [2], "delete")
        publisher.publish()
        table = DeltaTable(f"{catalog.warehouse}/tables/orders")
        assert table.transaction_version(APPLICATION) == 2
        compact(catalog, sample, [1, 3])
        publisher.publish()
        assert read(catalog, "tables/orders") == sample.plain([1, 3]).to_pylist()
        table.update_incremental()
        assert (table.transaction_version(APPLICATION), len(table.file_uris())) == (3, 1)

    def test_compaction_at_a_published_snapshot(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        bulk(catalog, sample, [1])
        publisher.publish()
        compact(catalog, sample, [1])
        assert publisher.publish() == 1
        assert publisher.publish() == 0
        assert read(catalog, "tables/orders") == sample.plain([1]).to_pylist()

    def test_vacuum_keeps_files_that_are_still_shown(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        sample.commit(catalog, [1])
        compact(catalog, sample, [1])
        publisher.publish()
        sample.commit(catalog, [2])
        compact(catalog, sample, [1, 2])
        assert vacuum(catalog, 2) == 0
        assert read(catalog, "tables/orders") == sample.plain([1]).to_pylist()
        publisher.publish()
        assert vacuum(catalog, 2) == 1
        assert read(catalog, "tables/orders") == sample.plain([1, 2]).to_pylist()

    def test_dropped_and_created_again(self, catalog: Catalog, publisher: Publisher, sample: Any) -> None:
        bulk(catalog, sample, [1])
        publisher.publish()
        other = replace(sample.orders, id=9)
        table = replace(sample.state.tables["orders"], storage=other)
        with catalog.write() as unit:
            unit.set_state(replace(sample.state, tables={"orders": table}))
        publisher.publish()
        assert read(catalog, "tables/orders-9") == []
        vacuum(catalog, 0)
        assert not Path(catalog.warehouse, "tables/orders").exists()


class TestFaults:
    def test_a_missing_file_is_not_published(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        bulk(catalog, sample, [1])
        next(Path(catalog.warehouse).rglob("*.parquet")).unlink()
        with pytest.raises(StorageError, match="is not there"):
            publisher.publish()

    def test_a_removed_delta_table_is_built_again(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        sample.commit(catalog, [1])
        publisher.publish()
        sample.commit(catalog, [2])
        log = Path(catalog.warehouse, "changes/orders/_delta_log")
        for file in log.iterdir():
            file.unlink()
        log.rmdir()
        Publisher(catalog).publish()
        assert [r["k"] for r in read(catalog, "changes/orders")] == [1, 2]

    def test_a_foreign_commit_is_not_in_the_way(
        self, catalog: Catalog, publisher: Publisher, sample: Any
    ) -> None:
        sample.commit(catalog, [1])
        publisher.publish()
        stranger = DeltaTable(f"{catalog.warehouse}/changes/orders")
        stranger.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
        sample.commit(catalog, [2])
        assert publisher.publish() == 1
        assert [r["k"] for r in read(catalog, "changes/orders")] == [1, 2]

    @pytest.mark.parametrize(
        "point",
        ["publish.begin", "publish.file", "publish.file:2", "publish.committed", "publish.committed:2"],
    )
    def test_a_crash_loses_and_doubles_nothing(
        self,
        open_catalog: Open,
        run_python: Callable[..., subprocess.Popen[str]],
        sample: Any,
        point: str,
    ) -> None:
        first = open_catalog()
        with first.write() as unit:
            unit.set_state(sample.state)
        bulk(first, sample, [1, 2])
        sample.commit(first, [3])
        first.close()
        program = "from cq_engine.catalog.delta_lake import Publisher\nPublisher(catalog).publish()\n"
        process = run_python(program, CQ_FAULT=point)
        assert process.wait(timeout=60) == -signal.SIGKILL
        catalog = open_catalog()
        sample.commit(catalog, [4])
        Publisher(catalog).publish()
        expected = [sample.rows(1, [1, 2]), sample.rows(2, [3]), sample.rows(3, [4])]
        assert read(catalog, "changes/orders") == logged(sample, pa.concat_tables(expected))
        assert read(catalog, "tables/orders") == sample.plain([1, 2]).to_pylist()

    @pytest.mark.parametrize("left", [0, 30])
    @pytest.mark.parametrize("which", ["commit", "first", "checkpoint", "hint"])
    def test_what_a_power_cut_has_torn_is_published_again(
        self, catalog: Catalog, sample: Any, which: str, left: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The newest commit or checkpoint, of which the catalog has not been told."""
        catalog.limits = replace(catalog.limits, checkpoint_commits=2)

        def die(name: str, *_: object) -> None:
            if name == "publish.committed":
                raise KeyboardInterrupt

        count = 1 if which == "first" else 2
        for number in range(1, count + 1):
            sample.commit(catalog, [number])
            if number == count:
                monkeypatch.setattr(faults, "point", die)
            with suppress(KeyboardInterrupt):
                Publisher(catalog).publish()
        monkeypatch.undo()
        log = Path(catalog.warehouse, "changes/orders/_delta_log")
        found = {
            "commit": [max(log.glob("[0-9]*.json"))],
            "first": list(log.glob("[0-9]*.json")),
            "checkpoint": list(log.glob("*.checkpoint.parquet")),
            "hint": [log / "_last_checkpoint"],
        }
        assert found[which]
        for path in found[which]:
            os.truncate(path, left)
        sample.commit(catalog, [count + 1])
        Publisher(catalog).publish()
        assert [row["k"] for row in read(catalog, "changes/orders")] == list(range(1, count + 2))

    def test_the_log_gets_checkpoints(self, catalog: Catalog, publisher: Publisher, sample: Any) -> None:
        for version in range(1, 56):
            sample.commit(catalog, [version])
            publisher.publish()
        assert list(Path(catalog.warehouse, "changes/orders/_delta_log").glob("*.checkpoint.parquet"))
        assert len(by_deltalake(f"{catalog.warehouse}/changes/orders")) == 55


class TestTroubles:
    """What is wrong with one table does not stop the others."""

    @pytest.fixture
    def others(self, catalog: Catalog, sample: Any) -> list[VersionedTable]:
        """Tables before and after `orders`; one of them with a name that no directory can have."""
        tables = [replace(sample.orders, id=n, name=name) for n, name in ((6, "first"), (7, "l" * 300))]
        known = catalog.state.tables
        with catalog.write() as unit:
            state = replace(
                catalog.state, tables={**known, **{t.name: Table(t.name, t, ("k",)) for t in tables}}
            )
            unit.set_state(state)
        return tables

    def commit(self, catalog: Catalog, sample: Any, tables: list[VersionedTable]) -> int:
        version = catalog.newest_version + 1
        with catalog.write() as unit:
            unit.add_commit(version, sample.when(version))
            for table in [sample.orders, *tables]:
                unit.add_changes(table, version, version, sample.rows(version, [version]))
        return version

    def published(self, catalog: Catalog) -> dict[int, int]:
        return {number: s.published_log for number, s in catalog.view.storage.items() if s.kind == "base"}

    def test_a_missing_file(
        self, catalog: Catalog, open_catalog: Open, sample: Any, others: list[VersionedTable]
    ) -> None:
        self.commit(catalog, sample, others)
        flush(catalog)
        (changes,) = catalog.changes(sample.orders.id, 0, 9)
        path = Path(catalog.warehouse, changes.files[0].path)
        path.rename(path.with_suffix(".away"))
        with pytest.raises(StorageError, match=f"cannot publish {changes.files[0].path}"):
            Publisher(catalog).publish()
        assert self.published(catalog) == {1: 0, 6: 1, 7: 1}
        path.with_suffix(".away").rename(path)
        catalog.close()
        again = open_catalog()
        Publisher(again).publish()
        assert self.published(again) == {1: 1, 6: 1, 7: 1}

    def test_several(
        self, catalog: Catalog, sample: Any, others: list[VersionedTable], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(rows: pa.Table, path: str, *args: Any) -> Any:
            if "/first/" in path or "/orders/" in path:
                with catalog.store.writing(path):
                    pass
                raise OSError(28, "No space left on device")
            return write_parquet(rows, path, *args)

        self.commit(catalog, sample, others)
        publisher = Publisher(catalog)
        with monkeypatch.context() as patch:
            patch.setattr(flush_module, "write_parquet", full)
            with pytest.raises(StorageError, match="failed for orders, first") as caught:
                publisher.publish()
        assert "No space left" in caught.value.detail
        assert self.published(catalog) == {1: 0, 6: 0, 7: 1}
        assert not list(Path(catalog.warehouse).rglob("orders/*/*.parquet"))
        self.commit(catalog, sample, others)
        publisher.publish()
        assert self.published(catalog) == {1: 2, 6: 2, 7: 2}

    def test_one_that_cannot_be_removed(self, catalog: Catalog, sample: Any) -> None:
        for keys in ([1], [1, 2], [1, 2, 3]):
            bulk(catalog, sample, keys[-1:])
            compact(catalog, sample, keys)
        old = [f.file.path for f in catalog.view.layout(1).files.values() if f.removed is not None]
        first = Path(catalog.warehouse, min(old))
        first.unlink()
        (first / "in the way").mkdir(parents=True)
        catalog.forget(lambda: {1: 3}, logs=True)
        with pytest.raises(StorageError, match="1 of") as caught:
            catalog.sweep()
        assert min(old) in caught.value.detail
        assert not any(Path(catalog.warehouse, path).exists() for path in sorted(old)[1:])
        (first / "in the way").rmdir()
        first.rmdir()
        first.touch()
        assert catalog.sweep() == 1
        assert not first.exists()
