"""A catalog that is opened again: after a process that has ended, with another schema, or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from cq_engine.catalog import migrations, schema
from cq_engine.catalog.model import Cursor
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.catalog.store import Catalog
from cq_engine.core import faults
from cq_engine.core.clock import SystemClock
from cq_engine.core.errors import CatalogError, StorageError
from tests.catalog.staged import Open, bulk, files_below, stage


class TestRecovery:
    def test_files_of_unfinished_attempts_go(
        self, catalog: Catalog, open_catalog: Open, sample: Any, warehouse: Path
    ) -> None:
        kept = bulk(catalog, sample, [1])
        garbage = catalog.attempt("copy")
        for table, role in ((sample.orders, "snapshot"), (sample.orders, "log"), (sample.log, "log")):
            stage(catalog, garbage, table, sample.plain([2]), role)
        stage(catalog, garbage, sample.block, sample.plain([2]), "snapshot")
        assert len(files_below(warehouse)) == 5
        catalog.recover()
        assert len(files_below(warehouse)) == 5, "an attempt that goes on is left alone"
        catalog.close()
        again = open_catalog()
        assert files_below(warehouse) == [kept.path]
        assert again.layout(1, 1).snapshot == (kept,)

    def test_abandoned_attempts_leave_nothing(self, catalog: Catalog, sample: Any, warehouse: Path) -> None:
        attempt = catalog.attempt("copy")
        stage(catalog, attempt, sample.orders, sample.plain([2]))
        attempt.abandon()
        assert files_below(warehouse) == []

    def test_what_cannot_be_given_up_goes_with_the_next_sweep(
        self, catalog: Catalog, sample: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk is full: the catalog cannot be told that the files are garbage, which are part of the problem."""

        def full(name: str, *_: object) -> None:
            if name == "catalog.before_commit":
                raise OperationalError("COMMIT", {}, sqlite3.OperationalError("database or disk is full"))

        attempt, other = catalog.attempt("copy"), catalog.attempt("merge")
        stage(catalog, attempt, sample.orders, sample.plain([2]))
        stage(catalog, other, sample.orders, sample.plain([3]))
        with monkeypatch.context() as patch:
            patch.setattr(faults, "point", full)
            attempt.abandon()  # raises nothing, so that what went wrong before is what is said
        assert len(files_below(warehouse)) == 2
        catalog.sweep(600)
        assert [other.id in path for path in files_below(warehouse)] == [True]

    def test_a_store_that_does_not_answer_hides_no_other_error(
        self, catalog: Catalog, sample: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor does it make an error of a commit whose scratch files are given up after it."""

        def lost(*_: object) -> None:
            raise OSError("When getting information for key 'k': AWS Error NETWORK_CONNECTION")

        attempt = catalog.attempt("copy")
        stage(catalog, attempt, sample.orders, sample.plain([2]))
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "having", lost)
            attempt.abandon()
            with pytest.raises(StorageError, match="files of an attempt"):
                catalog.sweep(600)
        assert len(files_below(warehouse)) == 1
        catalog.sweep(600)
        assert files_below(warehouse) == []

    def test_what_is_given_up_inside_of_a_transaction_is_so_as_a_whole(
        self, catalog: Catalog, sample: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its end would make durable that the attempt is none any more, but not that its files are garbage."""

        def lost(*_: object) -> None:
            raise StorageError("the store cannot be listed")

        attempt = catalog.attempt("copy")
        stage(catalog, attempt, sample.orders, sample.plain([2]))
        with monkeypatch.context() as patch:
            patch.setattr("cq_engine.catalog.writing.attempt_directories", lost)
            with pytest.raises(StorageError, match="listed"), catalog.exclusive(by_any=True):
                attempt.abandon()
        assert len(files_below(warehouse)) == 1
        catalog.sweep(600)
        assert files_below(warehouse) == []

    def test_what_nobody_holds_any_more_goes_with_the_next_sweep(
        self, catalog: Catalog, sample: Any, warehouse: Path
    ) -> None:
        """Whoever wrote it was interrupted before the transaction, and before anybody could tidy up."""
        held = catalog.attempt("copy")
        stage(catalog, held, sample.orders, sample.plain([1]))
        stage(catalog, catalog.attempt("merge"), sample.orders, sample.plain([2]))
        catalog.sweep(600)
        assert [held.id in path for path in files_below(warehouse)] == [True]

    @pytest.mark.parametrize("stored", [True, False])
    def test_the_answer_to_a_commit_is_lost(
        self, catalog: Catalog, sample: Any, monkeypatch: pytest.MonkeyPatch, stored: bool
    ) -> None:
        """What is in the database has not failed; what is not, has."""
        dialect = catalog._database.engine.dialect
        commit = dialect.do_commit

        def lose(connection: Any) -> None:
            (commit if stored else dialect.do_rollback)(connection)
            monkeypatch.undo()
            raise dialect.loaded_dbapi.OperationalError("server closed the connection unexpectedly")

        attempt = catalog.attempt("copy")
        file = stage(catalog, attempt, sample.orders, sample.plain([1]))
        monkeypatch.setattr(dialect, "do_commit", lose)
        said = []
        try:
            with catalog.lock, catalog.write(attempt) as unit:
                unit.add_commit(1, sample.when(1))
                inserts = frozenset({"INSERT"})
                unit.add_change_files(sample.orders, 1, 1, [file], inserts, insert_only=True)
        except StorageError as error:
            said.append(error)
        assert bool(said) != stored
        assert catalog.newest_version == int(stored)
        assert Path(catalog.warehouse, file.path).exists() == stored
        sample.commit(catalog, [2])
        assert catalog.newest_version == 1 + int(stored)


class TestSchema:
    def test_a_newer_schema_is_refused(self, catalog: Catalog, open_catalog: Open) -> None:
        with catalog._database.writing() as connection:
            newer = str(migrations.VERSION + 1)
            connection.execute(
                schema.meta.update().where(schema.meta.c.key == "schema_version").values(value=newer)
            )
        catalog.close()
        for read_only in (True, False):
            with pytest.raises(CatalogError, match="schema version"):
                open_catalog(read_only=read_only)

    def test_an_older_schema_is_brought_up_to_date(self, catalog: Catalog, open_catalog: Open) -> None:
        with catalog._database.writing() as connection:
            schema.doomed.drop(connection)
            schema.directories.drop(connection)
            schema.cascades.drop(connection)
            schema.queue_positions.drop(connection)
            schema.queue_messages.drop(connection)
            schema.captures.drop(connection)
            for name in ("rows", "dead"):
                connection.execute(sa.text(f"ALTER TABLE {schema.cursors.name} DROP COLUMN {name}"))
            connection.execute(
                sa.text(f"INSERT INTO {schema.cursors.name} VALUES ('big', 'sink', 1, 0, 0, '')")
            )
            long = {"kind": "base", "directory": "n" * 256, "floor": 0, "next_row_id": 1, "dropped": False}
            marks = {"published_table": -1, "published_log": 0}
            connection.execute(schema.storage.insert().values(table_id=99, **long, **marks))
            connection.execute(schema.meta.delete().where(schema.meta.c.key == "definitions"))
            connection.execute(
                schema.meta.update().where(schema.meta.c.key == "schema_version").values(value="1")
            )
        catalog.close()
        with pytest.raises(CatalogError, match="schema version 1"):
            open_catalog(read_only=True)
        again = open_catalog()
        assert ("base", "orders") in again.view.directories
        assert again.cursor("big", "sink") == Cursor("big", "sink", 1)
        with again._database.reading() as connection:
            assert migrations.stored_version(connection) == migrations.VERSION
            assert set(sa.inspect(connection).get_table_names()) == set(schema.metadata.tables)

    def test_a_database_belongs_to_one_warehouse(self, catalog: Catalog, tmp_path: Path) -> None:
        url = str(catalog._database.engine.url.render_as_string(hide_password=False))
        catalog.close()
        with pytest.raises(CatalogError, match="is the catalog of the warehouse"):
            Catalog.open(str(tmp_path / "other"), url=url, clock=SystemClock())

    def test_a_failing_open_gives_the_lease_back(
        self, open_catalog: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Catalog) -> None:
            raise StorageError("recovery failed")

        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "recover", fail)
            with pytest.raises(StorageError, match="recovery failed"):
                open_catalog()
        assert open_catalog().newest_version == 0

    def test_every_table_is_created(self, catalog: Catalog) -> None:
        with catalog._database.reading() as connection:
            assert set(sa.inspect(connection).get_table_names()) == set(schema.metadata.tables)


def test_an_unreachable_database_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open") as caught:
        Catalog.open(str(tmp_path), url="postgresql://user:secret@127.0.0.1:9/none", clock=SystemClock())
    assert "secret" not in str(caught.value)


def test_a_bucket_without_a_catalog_is_refused() -> None:
    with pytest.raises(CatalogError, match="has no catalog"):
        Catalog.open("s3://bucket/warehouse", clock=SystemClock())
