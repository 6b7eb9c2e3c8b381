"""A process's memory follows what another one writes: write by write, from the journal, not by reading everything again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from cq_engine.catalog import journal, persist, schema
from cq_engine.catalog.model import QueryStatus
from cq_engine.catalog.store import Catalog
from tests.catalog.work import Work, check_memory
from tests.postgres import cut

Open = Callable[..., Catalog]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that the whole catalog is read."""
    seen: list[int] = []
    load = persist.load

    def counting(connection: Any) -> Any:
        seen.append(1)
        return load(connection)

    monkeypatch.setattr(persist, "load", counting)
    return seen


def test_it_follows_whatever_is_written(
    catalog: Catalog, open_catalog: Open, sample: Any, loads: list[int]
) -> None:
    reader = open_catalog(read_only=True)
    with catalog.write() as unit:
        unit.set_status("big", QueryStatus(0))
    work = Work(catalog, sample, random.Random(5))
    for _ in range(150):
        work.step()
        work.look()
        before = len(loads)
        _ = reader.view
        assert len(loads) == before, "it has read everything"
        check_memory(reader)
    work.check(reader)
    assert len(work.keys) > 20
    assert reader.refreshes("big")


def test_who_is_far_behind_reads_everything_again(
    catalog: Catalog, open_catalog: Open, sample: Any, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEPT", 10)
    monkeypatch.setattr(journal, "_TRIM", 5)
    reader = open_catalog(read_only=True)
    for key in range(40):
        sample.commit(catalog, [key])
    with catalog._database.reading() as connection:
        assert len(connection.execute(schema.journal.select()).all()) < 20
    before = len(loads)
    assert reader.newest_version == 40
    assert len(loads) == before + 1
    check_memory(reader)
    sample.commit(catalog, [99])
    assert reader.newest_version == 41


def test_news_come_within_a_tenth_of_a_second(catalog: Catalog, open_catalog: Open, sample: Any) -> None:
    """Told by PostgreSQL, looked for in SQLite."""
    other = open_catalog(duties=False)
    assert other.watch is not None
    heard = threading.Event()
    other.watch.listener = lambda _news: heard.set()
    seconds = []
    for key in range(20):
        heard.clear()
        sample.commit(catalog, [key])
        begun = time.monotonic()
        assert heard.wait(10)
        seconds.append(time.monotonic() - begun)
    assert other.known_version == catalog.newest_version
    assert median(seconds) < 0.1
    other.watch.listener = None


def test_rows_that_are_flushed_meanwhile_are_asked_for_again(
    catalog: Catalog, open_catalog: Open, sample: Any
) -> None:
    from cq_engine.catalog.flush import flush
    from cq_engine.core.errors import StorageError

    sample.commit(catalog, [1])
    reader = open_catalog(read_only=True)
    (before,) = reader.changes(sample.orders.id, 1, 1)
    flush(catalog)
    with pytest.raises(StorageError, match="not inline"):
        reader.inline(before)
    (after,) = reader.changes(sample.orders.id, 1, 1)
    assert after.files


def test_a_server_that_has_ended_the_connections_is_asked_again(
    catalog: Catalog, open_catalog: Open, database_url: str | None, sample: Any
) -> None:
    reader = open_catalog(read_only=True)
    assert reader.newest_version == 0
    if database_url is not None:  # SQLite has no server
        cut(database_url)
    sample.commit(catalog, [1])
    assert reader.newest_version == 1
