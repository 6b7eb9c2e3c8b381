"""Generated histories of a keyed table, and what it held after every commit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pyarrow as pa

from cq_engine.api.engine import Engine
from cq_engine.catalog.model import VersionedTable
from cq_engine.storage.reader import Reader

Image = dict[tuple[int, int], tuple[int, str]]
CREATE = "CREATE TABLE t (a INT, b INT, g INT, s STRING, PRIMARY KEY (a, b)) CLUSTER BY (g)"


@dataclass
class History:
    """Commits random changes to the table `t (a, b, g, s)`."""

    engine: Engine
    rng: random.Random
    images: dict[int, Image] = field(default_factory=dict)
    """By version."""

    @property
    def table(self) -> VersionedTable:
        return self.engine.catalog.state.tables["t"].storage

    @property
    def now(self) -> Image:
        return self.images[max(self.images)] if self.images else {}

    def commit(self, *, inserts_only: bool = False) -> int:
        """One commit of inserts, updates (which may move a row to another cluster) and deletes."""
        image, rows = dict(self.now), []
        for key in sorted(image):
            chance = 1.0 if inserts_only else self.rng.random()
            if chance < 0.1:
                rows.append(("D", *key, *image.pop(key)))
            elif chance < 0.25:
                image[key] = (self.rng.randrange(100), f"s{self.rng.randrange(9)}")
                rows.append(("U", *key, *image[key]))
        for _ in range(self.rng.randint(1, 9)):
            key = (self.rng.randrange(6), self.rng.randrange(40))
            if key not in image and key not in {row[1:3] for row in rows}:
                image[key] = (self.rng.randrange(100), "new")
                rows.append(("I", *key, *image[key]))
        if not rows:
            return self.commit(inserts_only=inserts_only)
        kinds = [pa.string(), pa.int32(), pa.int32(), pa.int32(), pa.string()]
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows), kinds)]
        (version,) = self.engine.apply_changes({"t": pa.table(columns, names=["op", "a", "b", "g", "s"])})
        self.images[version] = image
        return version

    def check(self, versions: list[int] | None = None) -> None:
        """The image at every version is what was committed, and every row is found by its key."""
        reader, table = self.engine.reader, self.table
        for version in versions or list(self.images):
            rows = reader.restricted_image(table, version, {})
            assert rows is not None
            assert held(rows) == self.images[version], f"version {version}"
        version, image = max(self.images.items())
        wanted = [*self.rng.sample(sorted(image), min(5, len(image))), (99, 99)]
        keys = pa.table({"a": [a for a, _ in wanted], "b": [b for _, b in wanted]})
        keys = keys.cast(pa.schema([("a", pa.int32()), ("b", pa.int32())]))
        found = held(reader.lookup(table, version, keys))
        assert found == {key: image[key] for key in wanted if key in image}

    def check_by_spark(self, version: int) -> None:
        """The image through Spark, from the files."""
        rows = fresh(self.engine).image(self.table, version).collect()
        assert {(r["a"], r["b"]): (r["g"], r["s"]) for r in rows} == self.images[version]
        assert len(rows) == len(self.images[version])


def fresh(engine: Engine) -> Reader:
    """A reader that has nothing in memory."""
    return Reader(engine.catalog, lambda: engine.spark)


def held(rows: pa.Table) -> Image:
    found = {(r["a"], r["b"]): (r["g"], r["s"]) for r in rows.to_pylist()}
    assert len(found) == rows.num_rows, "a row twice"
    return found
