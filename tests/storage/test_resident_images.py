"""Images of small tables in memory: right at every version, and not built again to find that a table is too large."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.limits import Limits
from cq_engine.storage.resident_images import ResidentImage

SMALL = 100


class History:
    """Random transactions on a table, and what it then has."""

    def __init__(self, engine: cq_engine.Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.rows: dict[int, str] = {}

    @property
    def table(self) -> VersionedTable:
        return self.engine.catalog.state.tables["t"].storage

    @property
    def version(self) -> int:
        return self.engine.catalog.newest_version

    def commit(self, inserts: int = 0, updates: int = 0, deletes: int = 0, width: int = 1) -> None:
        gone = self.random.sample(sorted(self.rows), min(deletes, len(self.rows)))
        changed = self.random.sample(
            sorted(set(self.rows) - set(gone)), min(updates, len(self.rows) - len(gone))
        )
        free = [k for k in range(10 * SMALL) if k not in self.rows][:inserts]
        text = {k: str(self.random.random()) * width for k in (*changed, *free)}
        given = [{"k": k, "v": None, "op": "DELETE"} for k in gone]
        given += [{"k": k, "v": text[k], "op": "UPDATE"} for k in changed]
        given += [{"k": k, "v": text[k], "op": "INSERT"} for k in free]
        if not given:
            return
        schema = pa.schema({"k": pa.int64(), "v": pa.string(), "op": pa.string()})
        self.engine.apply_changes({"t": pa.Table.from_pylist(given, schema)}, op="op")
        self.rows.update(text)
        for k in gone:
            del self.rows[k]

    def image(self) -> dict[int, str] | None:
        found = self.engine.reader.small_image(self.table, self.version)
        if found is None:
            return None
        assert len(set(found.column("k").to_pylist())) == found.num_rows
        return dict(zip(found.column("k").to_pylist(), found.column("v").to_pylist()))


@pytest.fixture(params=[10**6, 0], ids=["inline", "files"])
def engine(
    spark: SparkSession, warehouse: Path, request: pytest.FixtureRequest
) -> Iterator[cq_engine.Engine]:
    limits = Limits(small_rows=SMALL, small_bytes=400_000, inline_bytes=request.param)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as opened:
        opened.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, v STRING)")
        yield opened


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions to which change rows have been applied, one by one."""
    versions: list[int] = []
    advance = ResidentImage.advance

    def advancing(image: ResidentImage, changes: pa.Table, version: int) -> None:
        versions.append(version)
        advance(image, changes, version)

    monkeypatch.setattr(ResidentImage, "advance", advancing)
    return versions


@pytest.mark.parametrize("seed", range(3))
def test_images_are_right_while_a_table_grows_and_shrinks(engine: cq_engine.Engine, seed: int) -> None:
    history = History(engine, seed)
    seen = set()
    for step in range(60):
        grows = (step // 20) % 2 == 0
        history.commit(
            inserts=history.random.choice([0, 6, 15] if grows else [0, 2]),
            updates=history.random.choice([0, 4, 40]),
            deletes=history.random.choice([0, 2] if grows else [3, 15]),
        )
        if step == 30:
            engine.execute("COMPACT TABLE t")
        found = history.image()
        seen.add(found is None)
        assert found is None or found == history.rows
        assert (found is None) == (len(history.rows) > SMALL), (step, len(history.rows))
    assert seen == {True, False}


def test_a_table_that_is_too_large_is_not_built_again(engine: cq_engine.Engine, built: list[int]) -> None:
    history = History(engine, 7)
    history.commit(inserts=SMALL + 50)
    history.commit(updates=SMALL)  # who counts the change rows can no longer tell how many rows there are
    assert history.image() is None
    del built[:]
    for _ in range(10):
        history.commit(updates=4)
        assert history.image() is None
        assert history.image() is None
    assert built == []
    history.commit(deletes=70)
    assert history.image() == history.rows


def test_nor_is_one_whose_rows_are_too_wide(engine: cq_engine.Engine, built: list[int]) -> None:
    history = History(engine, 8)
    history.commit(inserts=SMALL // 2, width=200)
    history.commit(updates=4)
    assert history.image() is None
    del built[:]
    for _ in range(5):
        history.commit(updates=1)
        assert history.image() is None
    assert built == []
    history.commit(deletes=40)
    assert history.image() == history.rows


@pytest.mark.parametrize("left", [SMALL + 20, SMALL])
def test_rows_are_counted_before_an_image_is_built(
    engine: cq_engine.Engine, built: list[int], left: int
) -> None:
    """Where change rows may be deletions, their number does not say how many rows are left. Of versions inside one change set,
    too, each is counted once."""
    history = History(engine, 9)
    history.commit(inserts=SMALL + 50)
    engine.execute("COMPACT TABLE t")
    before = history.version
    gone = sorted(history.rows)[: SMALL + 50 - left]
    changes = [(key, None, "DELETE", 1 + n % 4) for n, key in enumerate(gone)]
    changes += [(key, "new", "UPDATE", 5) for key in sorted(history.rows)[SMALL + 50 - left :]]
    keys, values, kinds, numbers = zip(*changes)
    given = pa.table({"k": keys, "v": pa.array(values, pa.string()), "op": kinds, "txn": numbers})
    engine.apply_changes({"t": given}, op="op", transaction="txn")
    del built[:]
    sizes = {}
    for _ in range(3):
        for version in range(before + 1, before + 6):
            engine.reader._images.clear()
            found = engine.reader.small_image(history.table, version)
            assert found is None or found.num_rows <= SMALL
            sizes[version] = None if found is None else found.num_rows
    assert list(sizes.values()) == [None] * 3 + [None if left > SMALL else left] * 2
    assert len(built) <= (0 if left > SMALL else 6)
