"""What a catalog promises, over every database it runs on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cq_engine.catalog.model import CatalogState, Cursor, QueryStatus, RefreshRecord, Table
from cq_engine.catalog.store import Catalog
from cq_engine.core.clock import SystemClock
from cq_engine.core.errors import CatalogError, StorageError, TransactionError
from tests.catalog.conftest import vacuum
from tests.catalog.staged import Open, bulk, files_below, stage


class TestEmpty:
    def test_a_new_warehouse_has_nothing(self, open_catalog: Open, warehouse: Path) -> None:
        catalog = open_catalog()
        assert warehouse.is_dir()
        assert (catalog.newest_version, catalog.newest_timestamp) == (0, None)
        assert catalog.state == CatalogState()
        assert catalog.refreshes() == []
        with pytest.raises(StorageError, match="no commit"):
            catalog.version_at(SystemClock().now())

    def test_reading_creates_nothing(self, open_catalog: Open, warehouse: Path) -> None:
        with pytest.raises(CatalogError, match="no warehouse"):
            open_catalog(read_only=True)
        assert not warehouse.exists()

    def test_a_new_table_is_empty_at_every_version(self, catalog: Catalog, sample: Any) -> None:
        layout = catalog.layout(sample.orders.id, 0)
        assert (layout.base, layout.snapshot, layout.changes) == (0, (), ())


class TestCommits:
    def test_a_commit_is_there_after_opening_again(
        self, catalog: Catalog, open_catalog: Open, sample: Any
    ) -> None:
        for keys in ([1, 2], [3], [4]):
            sample.commit(catalog, keys)
        before = catalog.layout(1, 3)
        catalog.close()
        again = open_catalog()
        assert again.newest_version == 3
        assert again.newest_timestamp == again.timestamp(3) == sample.when(3)
        assert again.layout(1, 3) == before
        assert again.inline(before.changes[0]).equals(sample.rows(1, [1, 2]))
        assert again.state == sample.state

    def test_times_find_versions(self, catalog: Catalog, sample: Any) -> None:
        for _ in range(3):
            sample.commit(catalog, [1])
        assert catalog.version_at(sample.when(2)) == 2
        assert catalog.version_at(sample.when(3) - timedelta(microseconds=1)) == 2
        assert catalog.version_at(sample.when(99)) == 3
        assert catalog.timestamps(2, 9) == {2: sample.when(2), 3: sample.when(3)}
        with pytest.raises(StorageError, match="no commit"):
            catalog.version_at(sample.when(0))
        with pytest.raises(StorageError, match="version 4"):
            catalog.timestamp(4)

    @pytest.mark.parametrize(("version", "minute"), [(1, 5), (0, 5), (2, 0)])
    def test_versions_and_times_do_not_go_back(
        self, catalog: Catalog, sample: Any, version: int, minute: int
    ) -> None:
        sample.commit(catalog, [1])
        with pytest.raises(TransactionError), catalog.write() as unit:
            unit.add_commit(version, sample.when(minute))
        assert catalog.newest_version == 1

    def test_kinds_of_inline_rows(self, catalog: Catalog, sample: Any) -> None:
        pre = sample.rows(1, [1], "update_preimage")
        post = sample.rows(1, [1], "update_postimage")
        with catalog.write() as unit:
            unit.add_commit(1, sample.when(1))
            unit.add_changes(
                sample.orders, 1, 1, pa.concat_tables([pre, post, sample.rows(1, [2], "delete")])
            )
            unit.add_changes(sample.block, 1, 1, sample.deltas(1, []))
        (changes,) = catalog.layout(1, 1).changes
        assert changes.kinds == {"UPDATE", "DELETE"}
        assert catalog.layout(4, 1).changes == ()

    def test_rows_outlive_the_cache(self, catalog: Catalog, sample: Any) -> None:
        sample.commit(catalog, [1, 2])
        (changes,) = catalog.layout(1, 1).changes
        assert catalog.cached(changes) is not None
        catalog.cache.discard(changes)
        assert catalog.cached(changes) is None
        assert catalog.inline(changes).equals(sample.rows(1, [1, 2]))

    def test_big_rows_are_compressed_and_come_back(self, catalog: Catalog, sample: Any) -> None:
        rows = sample.rows(1, range(20_000))
        with catalog.write() as unit:
            unit.add_commit(1, sample.when(1))
            unit.add_changes(sample.orders, 1, 1, rows)
        (changes,) = catalog.layout(1, 1).changes
        catalog.cache.discard(changes)
        assert catalog.inline(changes).equals(rows)


class TestRollback:
    def test_an_exception_leaves_nothing(
        self, catalog: Catalog, open_catalog: Open, sample: Any, warehouse: Path
    ) -> None:
        attempt = catalog.attempt("copy")
        file = stage(catalog, attempt, sample.orders, sample.plain([1]))

        def fail() -> None:
            with catalog.write(attempt) as unit:
                unit.add_commit(1, sample.when(1))
                unit.add_change_files(sample.orders, 1, 1, [file], frozenset({"INSERT"}), insert_only=True)
                unit.set_status("big", QueryStatus(1))
                unit.set_state(CatalogState())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        self.check_nothing(catalog, sample, warehouse)
        catalog.close()
        self.check_nothing(open_catalog(), sample, warehouse)

    def test_a_database_error_leaves_nothing(
        self, catalog: Catalog, open_catalog: Open, sample: Any, warehouse: Path
    ) -> None:
        def fail() -> None:
            with catalog.write() as unit:
                unit.add_commit(1, sample.when(1))
                unit.add_changes(sample.orders, 1, 1, sample.rows(1, [1]))
                unit.set_cursor(Cursor("big", "sink", 1, error=None))  # type: ignore[arg-type]

        with pytest.raises(StorageError, match="cannot write"):
            fail()
        self.check_nothing(catalog, sample, warehouse)
        catalog.close()
        self.check_nothing(open_catalog(), sample, warehouse)

    def check_nothing(self, catalog: Catalog, sample: Any, warehouse: Path) -> None:
        assert catalog.newest_version == 0
        assert catalog.layout(1, 9).changes == ()
        assert catalog.layout(1, 9).snapshot == ()
        assert catalog.state == sample.state
        assert catalog.cursors("big") == []
        assert files_below(warehouse) == []

    def test_unknown_tables_are_refused(self, catalog: Catalog, sample: Any) -> None:
        with pytest.raises(CatalogError, match="not in the catalog"), catalog.write() as unit:
            unit.add_changes(replace(sample.orders, id=99), 1, 1, sample.rows(1, [1]))


class TestSnapshots:
    def test_an_insert_only_commit_is_snapshot_and_log(self, catalog: Catalog, sample: Any) -> None:
        first, second = bulk(catalog, sample, [1, 2]), bulk(catalog, sample, [3])
        assert catalog.layout(1, 0).snapshot == ()
        assert [c.files for c in catalog.layout(1, 0).changes] == [(first,), (second,)]
        assert (catalog.layout(1, 1).base, catalog.layout(1, 1).snapshot) == (1, (first,))
        assert (catalog.layout(1, 7).base, catalog.layout(1, 7).changes) == (2, ())
        assert catalog.layout(1, 2).snapshot == (first, second)

    def test_but_not_above_other_changes(self, catalog: Catalog, sample: Any) -> None:
        sample.commit(catalog, [1])
        bulk(catalog, sample, [2])
        layout = catalog.layout(1, 2)
        assert (layout.base, layout.snapshot) == (0, ())
        assert [c.insert_only for c in layout.changes] == [False, True]

    @pytest.mark.parametrize("inline_first", [True, False])
    def test_nor_beside_other_changes_of_its_version(
        self, catalog: Catalog, sample: Any, inline_first: bool
    ) -> None:
        attempt = catalog.attempt("copy")
        file = stage(catalog, attempt, sample.orders, sample.plain([1]))
        with catalog.write(attempt) as unit:
            unit.add_commit(1, sample.when(1))
            if inline_first:
                unit.add_changes(sample.orders, 1, 1, sample.rows(1, [2]))
            unit.add_change_files(sample.orders, 1, 1, [file], frozenset({"INSERT"}), insert_only=True)
            if not inline_first:
                unit.add_changes(sample.orders, 1, 1, sample.rows(1, [2]))
        assert (catalog.layout(1, 1).base, len(catalog.layout(1, 1).changes)) == (0, 2)

    def test_compaction_replaces_files(self, catalog: Catalog, open_catalog: Open, sample: Any) -> None:
        first = bulk(catalog, sample, [1, 2])
        sample.commit(catalog, [1], "delete")
        attempt = catalog.attempt("compact")
        new = stage(catalog, attempt, sample.orders, sample.plain([2]))
        with catalog.write(attempt) as unit:
            unit.advance_snapshot(sample.orders, 2, [new], [first.path])
        catalog.close()
        again = open_catalog()
        assert again.layout(1, 1).snapshot == (first,)
        assert (again.layout(1, 2).snapshot, again.layout(1, 2).changes) == ((new,), ())

    def test_what_nobody_would_see_is_refused(self, catalog: Catalog, sample: Any) -> None:
        file = bulk(catalog, sample, [1])
        with pytest.raises(StorageError, match="below the snapshot"), catalog.write() as unit:
            unit.add_changes(sample.orders, 1, 1, sample.rows(1, [2]))
        with pytest.raises(StorageError, match="already"), catalog.write() as unit:
            unit.advance_snapshot(sample.orders, 2, [file], [])
        with pytest.raises(StorageError, match="not a snapshot file"), catalog.write() as unit:
            unit.advance_snapshot(sample.orders, 2, [], ["tables/orders/elsewhere.parquet"])

    def test_vacuum_keeps_what_the_pin_needs(self, catalog: Catalog, sample: Any, warehouse: Path) -> None:
        initial = catalog.attempt("initial")
        first = stage(catalog, initial, sample.block, sample.plain([1]))
        with catalog.write(initial) as unit:
            unit.advance_snapshot(sample.block, 0, [first], [])
        for _ in range(3):
            sample.commit(catalog, [1])
        attempt = catalog.attempt("compact")
        second = stage(catalog, attempt, sample.block, sample.plain([2]))
        with catalog.write(attempt) as unit:
            unit.advance_snapshot(sample.block, 2, [second], [first.path])
        assert vacuum(catalog, 1) == 0
        assert catalog.layout(4, 1).snapshot == (first,)
        assert vacuum(catalog, 2) == 1
        assert files_below(warehouse) == [second.path]
        assert catalog.layout(4, 2).snapshot == (second,)
        with pytest.raises(StorageError, match="no longer kept"):
            catalog.layout(4, 1)

    def test_vacuum_keeps_files_of_the_change_log(
        self, catalog: Catalog, open_catalog: Open, sample: Any
    ) -> None:
        file = bulk(catalog, sample, [1])
        attempt = catalog.attempt("compact")
        new = stage(catalog, attempt, sample.orders, sample.plain([1], "y"))
        with catalog.write(attempt) as unit:
            unit.advance_snapshot(sample.orders, 1, [new], [file.path])
        assert vacuum(catalog, 1) == 0
        assert (Path(catalog.warehouse) / file.path).exists()
        catalog.close()
        again = open_catalog()
        assert again.changes(1, 1, 1)[0].files == (file,)
        assert again.layout(1, 1).snapshot == (new,)
        with pytest.raises(StorageError, match="no longer kept"):
            again.layout(1, 0)


class TestQueries:
    def test_status_cursor_and_refreshes(self, catalog: Catalog, open_catalog: Open, sample: Any) -> None:
        record = RefreshRecord("big", 0, 3, 1, 2, 3, "incremental", 0.5, sample.when(3))
        with catalog.write() as unit:
            unit.set_status("Big", QueryStatus(3, "FAILED", "it said", sample.when(3)))
            unit.set_cursor(Cursor("big", "Sink", 3, 7))
            unit.set_cursor(Cursor("big", "other", 2, failures=1, error="down"))
            unit.add_refresh(record)
            unit.add_refresh(replace(record, from_version=3, to_version=4))
        catalog.close()
        again = open_catalog()
        assert again.status("BIG") == QueryStatus(3, "FAILED", "it said", sample.when(3))
        assert again.cursor("big", "Sink") == Cursor("big", "Sink", 3, 7)
        assert len(again.cursors("Big")) == 2
        assert [r.to_version for r in again.refreshes("big")] == [4, 3]
        assert again.refreshes(limit=1)[0].from_version == 3
        with again.write() as unit:
            unit.drop_cursor("big", "other")
        assert [c.destination for c in again.cursors("big")] == ["Sink"]

    def test_dropping_drops_all_that_belongs_to_it(
        self, catalog: Catalog, open_catalog: Open, sample: Any, warehouse: Path
    ) -> None:
        bulk(catalog, sample, [1])
        with catalog.write() as unit:
            unit.set_status("big", QueryStatus(1))
            unit.set_cursor(Cursor("big", "sink", 1))
        with catalog.write() as unit:
            unit.set_state(CatalogState(next_id=5))
        with pytest.raises(CatalogError, match="no continuous query"):
            catalog.status("big")
        assert catalog.cursors("big") == []
        assert vacuum(catalog, 0) == 0
        assert files_below(warehouse) == []
        catalog.close()
        assert open_catalog().state == CatalogState(next_id=5)

    def test_a_replaced_query_starts_anew(self, catalog: Catalog, sample: Any) -> None:
        with catalog.write() as unit:
            unit.set_status("big", QueryStatus(7))
        other = replace(sample.query, id=6, result=replace(sample.log, id=7), states=())
        with catalog.write() as unit:
            unit.set_state(replace(sample.state, queries={"big": other}))
            unit.set_status("big", QueryStatus(9))
        assert catalog.status("big").position == 9

    def test_same_names_do_not_share_directories(self, catalog: Catalog, sample: Any) -> None:
        file = bulk(catalog, sample, [1])
        other = replace(sample.orders, id=9)
        table = replace(sample.state.tables["orders"], storage=other)
        with catalog.write() as unit:
            unit.set_state(replace(sample.state, tables={"orders": table}))
        assert file.path.startswith("tables/orders/")
        attempt = catalog.attempt("copy")
        assert "tables/orders-9/" in attempt.directory(other, "snapshot")
        strange = replace(sample.orders, id=10, name="Größe/ä b")
        assert attempt.directory(strange, "log").isascii()
        attempt.abandon()

    @pytest.mark.parametrize("length", [64, 65, 256, 3000])
    def test_long_names(self, catalog: Catalog, open_catalog: Open, sample: Any, length: int) -> None:
        table = replace(sample.orders, id=9, name="n" * length)
        with catalog.write() as unit:
            unit.set_state(
                replace(
                    sample.state, tables={**sample.state.tables, table.name: Table(table.name, table, ("k",))}
                )
            )
        attempt = catalog.attempt("copy")
        stage(catalog, attempt, table, sample.plain([1]))
        catalog.close()
        again = open_catalog()
        (name,) = (s.directory for s in again.view.storage.values() if s.table_id == 9)
        assert name == "n" * 64 + ("-9" if length > 64 else "")

    def test_a_name_is_given_once(self, catalog: Catalog, open_catalog: Open, sample: Any) -> None:
        """Neither after the table is gone, nor the id after a failure."""
        with catalog.write() as unit:
            unit.set_state(replace(sample.state, tables={}, queries={}))
        catalog.sweep()
        catalog.close()
        again = open_catalog()
        number = again.state.next_id
        other = replace(sample.orders, id=number)
        failed = again.attempt("create")
        assert f"tables/orders-{number}/" in failed.directory(other, "snapshot")
        failed.abandon()
        assert again.state.next_id == number + 1
        again.close()
        assert open_catalog().state.next_id == number + 1


class TestRowIds:
    def test_ids_are_never_given_twice(self, catalog: Catalog, open_catalog: Open) -> None:
        first = catalog.reserve_row_ids(1, 10)
        second = catalog.reserve_row_ids(1, 50_000)
        third = catalog.reserve_row_ids(1, 1)
        catalog.close()
        fourth = open_catalog().reserve_row_ids(1, 1)
        assert first + 10 <= second
        assert second + 50_000 <= third
        assert third + 1 <= fourth


class TestReaders:
    def test_a_reader_sees_later_commits(self, catalog: Catalog, open_catalog: Open, sample: Any) -> None:
        reader = open_catalog(read_only=True)
        assert reader.newest_version == 0
        sample.commit(catalog, [1, 2])
        assert reader.newest_version == 1
        (changes,) = reader.layout(1, 1).changes
        assert reader.inline(changes).num_rows == 2

    def test_a_reader_cannot_write(self, catalog: Catalog, open_catalog: Open) -> None:
        reader = open_catalog(read_only=True)
        for write in (lambda: reader.attempt("copy"), lambda: reader.reserve_row_ids(1, 1)):
            with pytest.raises(CatalogError, match="reading only"):
                write()
        with pytest.raises(CatalogError, match="reading only"), reader.write():
            pass
