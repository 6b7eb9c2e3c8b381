"""Worlds of tables alone, through an engine that never starts Spark: commits, merging and reading, thousands a minute.

python tests/adversary/stored.py --seed 1 --worlds 200
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cq_engine
from cq_engine.core import beside
from cq_engine.core.limits import Limits
from tests.adversary.history import Addition, HistoryMaker
from tests.adversary.kinds import KINDS
from tests.adversary.options import worlds_to_play
from tests.adversary.oracles import normal
from tests.adversary.paths import STORED
from tests.adversary.tables import Model, Table, random_tables
from tests.adversary.twists import referring_to_themselves, some_additions, some_twists
from tests.limits import many_rows
from tests.oracle.law import difference

__all__ = ["Stored", "check_tables"]


class _NoSpark:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark is asked for {name}")


class Stored:
    """A warehouse that gets batches of changes; `checks` are images that are those of the model."""

    def __init__(self, seed: str, directory: Path, twists: Collection[str] | None = None) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.tables = random_tables(self.random)
        twists = some_twists(seed) if twists is None else twists
        apart, itself = random.Random(f"{seed}/apart"), "itself" in twists
        if itself:
            self.tables = referring_to_themselves(apart, self.tables)
        # A foreign key that is added later is checked by Spark.
        self.additions = some_additions(apart, self.tables, KINDS, False) if "columns" in twists else []
        self.history = HistoryMaker(f"{seed}/history", self.tables)
        paths = self.random.sample(sorted(STORED.items()), self.random.choice((0, 1, 2, 3)))
        self.bounds = {key: value for _, path in paths for key, value in path.items()}
        self.many = random.Random(f"{seed}/beside").choice((0, beside.MANY_ROWS))
        self.images: dict[int, Model] = {}
        self.checks = 0
        self.engine = self._open()

    def _open(self) -> cq_engine.Engine:
        return cq_engine.connect(
            self.directory, spark=_NoSpark(), scheduler=False, conf={"maintenance": "manual"},  # type: ignore[arg-type]
            limits=Limits(**self.bounds),
        )  # fmt: skip

    def run(self, steps: int) -> None:
        """Applies batches, and whatever else may happen in between."""
        try:
            for table in self.tables:
                self.engine.execute(table.create())
            for step in range(steps):
                if self.additions and step % 5 == 3:
                    self._widen(self.additions.pop(0))
                self._apply()
                self._between()
                self._check(self.random.choice(sorted(self.images)) if self.images else None)
                self._check(max(self.images, default=None))
        finally:
            self.engine.close()

    def _widen(self, addition: Addition) -> None:
        for statement in addition.statements:
            self.engine.execute(statement)
        self.history.add(addition)
        self.tables = self.history.tables
        for image in self.images.values():
            image.widen(addition.table)

    def _apply(self) -> None:
        batch = self.history.batch(self.random.randint(1, 3))
        if not batch.after:
            return
        with many_rows(self.many):
            versions = self.engine.apply_changes(batch.changes, transaction="txn", order="seq")
        assert len(versions) == len(batch.after), (versions, batch)
        self.images.update(zip(versions, batch.after))

    def _between(self) -> None:
        chance = self.random.random()
        if chance < 0.25:
            self.engine.maintain()
        elif chance < 0.32:
            self.engine.execute("VACUUM")
        elif chance < 0.4:
            self.engine.close()
            self.engine = self._open()

    def _check(self, version: int | None) -> None:
        for table in self.tables if version is not None else ():
            assert version is not None
            wanted = [normal(row) for row in self.images[version].rows[table.name]]
            problem = difference(self._image(table, version), wanted)
            assert not problem, f"{table.create()} at version {version}: {problem}"
            self.checks += 1

    def _image(self, table: Table, version: int) -> list[tuple[Any, ...]]:
        storage = self.engine.catalog.state.tables[table.name].storage
        rows = self.engine.reader.restricted_image(storage, version, {})
        assert rows is not None
        return [normal(row.values()) for row in rows.select([n for n, _ in table.columns]).to_pylist()]


def check_tables(seed: str, directory: Path, steps: int = 25, twists: Collection[str] | None = None) -> int:
    """One world; how many images were checked. Raises what is wrong, with the limits."""
    stored = Stored(seed, directory, twists)
    try:
        stored.run(steps)
    except Exception as problem:
        raise AssertionError(
            f"seed {seed}, limits {stored.bounds}: {type(problem).__name__}: {problem}"
        ) from problem
    return stored.checks


def main() -> int:
    checks, faults, begun = 0, 0, time.monotonic()
    for world, seed, twists in worlds_to_play(__doc__):
        try:
            with tempfile.TemporaryDirectory() as place:
                checks += check_tables(seed, Path(place) / "warehouse", twists=twists)
        except AssertionError:
            faults += 1
            traceback.print_exc()
        if world % 20 == 19:
            print(f"world {world}: {checks} checks, {faults} faults", flush=True)
    print(f"{checks} checks in {time.monotonic() - begun:.0f} s, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
