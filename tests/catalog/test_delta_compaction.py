"""Published logs of few files: the same rows, for every reader, whatever crashes; and what goes when nobody needs it."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cq_engine.catalog.delta_compaction import cut_log, open_log, small_files, superseded
from cq_engine.catalog.delta_lake import Publisher
from cq_engine.catalog.store import Catalog
from cq_engine.core import faults
from cq_engine.core.columns import Column
from tests.catalog.published import bulk, by_deltalake, compact, read

LOG = "changes/orders"


class Crash(BaseException):
    pass


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """Publishing does not depend on the database."""
    return None


@pytest.fixture
def small(catalog: Catalog) -> Catalog:
    catalog.limits = replace(catalog.limits, published_files=4, checkpoint_commits=5, publish_batch_rows=7)
    return catalog


def keys(catalog: Catalog) -> list[int]:
    return sorted(row["k"] for row in by_deltalake(f"{catalog.warehouse}/{LOG}"))


def log(catalog: Catalog) -> Path:
    return Path(catalog.warehouse, LOG)


def on_disk(catalog: Catalog) -> set[str]:
    return {p.relative_to(log(catalog)).as_posix() for p in log(catalog).rglob("*.parquet") if "_delta_log" not in p.parts}  # fmt: skip


def named(catalog: Catalog) -> set[str]:
    return {path.partition(f"{LOG}/")[2] for path in DeltaTable(str(log(catalog))).file_uris()}


def unnamed(catalog: Catalog, hours: int) -> list[str]:
    handle = open_log(catalog.store, LOG)
    assert handle is not None
    return superseded(handle, catalog.store, LOG, hours)


def cut(catalog: Catalog, hours: int) -> None:
    handle = open_log(catalog.store, LOG)
    assert handle is not None
    cut_log(handle, catalog.store, LOG, hours)


def news(catalog: Catalog) -> list[str]:
    """The files that a stream of the Delta table gets."""
    lines = [line for path in sorted(log(catalog).glob("_delta_log/*.json")) for line in path.read_text().splitlines()]  # fmt: skip
    adds = [action["add"] for action in map(json.loads, lines) if "add" in action]
    return [add["path"] for add in adds if add["dataChange"]]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_rows_stay_and_come_once(
    small: Catalog, sample: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, publisher, wanted, next_key = random.Random(seed), Publisher(small), [], 0
    points = ["file.begin", "publish.file", "publish.commit", "publish.committed"]
    crashes = 0
    for number in range(40):
        made = list(range(next_key, next_key + dice.randint(1, 20)))
        next_key = made[-1] + 1
        wanted += made
        if dice.random() < 0.2:
            bulk(small, sample, made)
        else:
            sample.commit(small, made)
        if number == 20:
            _add_column(small, sample)
        point, left = dice.choice(points), [dice.randint(1, 2) if dice.random() < 0.4 else 0]

        def reached(name: str, *_: object, point: str = point, left: list[int] = left) -> None:
            left[0] -= name == point
            if name == point and left[0] == 0:
                raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(faults, "point", reached)
            try:
                publisher.publish()
            except Crash:
                crashes += 1
                publisher = Publisher(small)
        publisher.publish()
        assert keys(small) == wanted
        assert len(named(small)) < 2 * small.limits.published_files
        assert named(small) <= on_disk(small)
    assert crashes > 3
    assert sorted(row["k"] for row in read(small, LOG)) == wanted
    assert len(news(small)) == len(set(news(small)))
    streamed = sum(DeltaRows(log(small) / path).rows for path in news(small))
    assert streamed == len(wanted)


class DeltaRows:
    """The rows of a data file."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.rows = pq.read_metadata(path).num_rows


def test_files_that_are_large_stay(catalog: Catalog, sample: Any) -> None:
    catalog.limits = replace(catalog.limits, published_files=4, published_file_bytes=1)
    publisher = Publisher(catalog)
    for number in range(8):
        sample.commit(catalog, [number])
        publisher.publish()
    assert len(named(catalog)) == 8
    catalog.limits = replace(catalog.limits, published_file_bytes=4_000)
    sample.commit(catalog, [8])
    publisher.publish()
    first = min(named(catalog), key=lambda path: (not path.startswith("merged-"), path))
    assert first.startswith("merged-")
    assert len(named(catalog)) < 9
    assert keys(catalog) == list(range(9))


def test_small_files_go_when_nobody_needs_them(small: Catalog, sample: Any) -> None:
    publisher = Publisher(small)
    for number in range(8):
        sample.commit(small, [number])
        publisher.publish()
    orphan = log(small) / "merged-of-a-killed-process" / "part-00000.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"half")
    assert f"{orphan.parent.name}/{orphan.name}" not in unnamed(small, 0), "its process may be alive"
    os.utime(orphan, (time.time() - 3700,) * 2)
    foreign = log(small) / "somebody.parquet"
    foreign.write_bytes(b"else")
    assert unnamed(small, 2) == []
    gone = unnamed(small, 0)
    assert set(gone) == on_disk(small) - named(small) - {"somebody.parquet"}
    paths = [f"{LOG}/{path}" for path in gone]
    merged = [path for path in gone if path.startswith("merged-")]
    assert small.disown(paths) == len(merged) == 2, "the engine's own history is in the others"
    compact(small, sample, list(range(8)))
    publisher.publish()
    small.forget(lambda: dict.fromkeys(small.view.layouts, 8), logs=True)
    assert small.disown(paths) == len(gone) - 2
    assert small.disown(paths) == 0, "they are on the list"
    small.sweep()
    assert on_disk(small) == named(small) | {"somebody.parquet"}
    assert {p for p in log(small).iterdir() if p.is_dir() and not any(p.iterdir())} == set()
    assert keys(small) == list(range(8))
    assert unnamed(small, 0) == []


def test_a_file_that_is_about_to_be_named_stays(
    small: Catalog, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VACUUM with RETAIN 0 HOURS may come while another thread publishes."""
    publisher, listed = Publisher(small), []

    def reached(name: str, *_: object) -> None:
        if name == "publish.commit" and list(log(small).glob("merged-*")):
            listed.append(unnamed(small, 0))

    for number in range(3):
        sample.commit(small, [number])
        publisher.publish()
    monkeypatch.setattr(faults, "point", reached)
    sample.commit(small, [3])
    publisher.publish()
    assert listed == [[]]
    assert len(named(small)) == 1


def test_what_others_mark_as_deleted_is_left_to_them(small: Catalog, sample: Any) -> None:
    class Handle:
        def protocol(self) -> Any:
            return type("Protocol", (), {"reader_features": ["deletionVectors"]})

    assert small_files(Handle(), small.limits) == []  # type: ignore[arg-type]


def test_the_log_is_cut(small: Catalog, sample: Any) -> None:
    publisher = Publisher(small)
    for number in range(12):
        sample.commit(small, [number])
        publisher.publish()
    before = len(list(log(small).glob("_delta_log/*.json")))
    cut(small, 1)
    assert len(list(log(small).glob("_delta_log/*.json"))) == before + 1
    cut(small, 0)
    assert len(list(log(small).glob("_delta_log/*.json"))) <= small.limits.checkpoint_commits + 2
    sample.commit(small, [12])
    assert publisher.publish() >= 1
    assert keys(small) == list(range(13))
    assert keys(small) == sorted(row["k"] for row in read(small, LOG))


def test_columns_are_added_after_the_log_was_cut(small: Catalog, sample: Any) -> None:
    """Which changes the properties of the Delta table behind the publisher's back."""
    publisher = Publisher(small)
    sample.commit(small, [1])
    publisher.publish()
    cut(small, 24)
    _add_column(small, sample)
    sample.commit(small, [2])
    assert publisher.publish() == 1
    assert keys(small) == [1, 2]
    assert "w" in read(small, LOG)[0]


def _add_column(catalog: Catalog, sample: Any) -> None:
    table = replace(sample.orders, columns=(*sample.orders.columns, Column("w", "int")))
    with catalog.write() as unit:
        state = catalog.state
        orders = replace(state.tables["orders"], storage=table)
        unit.set_state(replace(state, tables={**state.tables, "orders": orders}))
