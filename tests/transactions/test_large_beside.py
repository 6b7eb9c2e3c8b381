"""A large `apply_changes` beside the commits of another process: what comes of it is what it does after them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog import schema
from cq_engine.core import faults
from cq_engine.core.limits import Limits
from cq_engine.transactions import large_changes

NAMES = ("t", "u")
DDL = "CREATE TABLE {} (k INT PRIMARY KEY, v INT, w STRING NOT NULL)"
MERGED = "WHEN MATCHED THEN UPDATE SET v = 0 WHEN NOT MATCHED THEN INSERT (k, v, w) VALUES (s.k, 0, 'c')"
ROLES = {"transaction": "txn", "order": "seq"}


class Warehouses:
    """One that executors change, while another process commits to it; and one that the driver changes, after the fact."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self.path = path / "beside"
        limits = Limits(apply_rows=4, staged_file_rows=5)
        self.mine = cq_engine.connect(self.path, spark=spark, scheduler=False, limits=limits)
        self.model = cq_engine.connect(path / "model", spark=spark, scheduler=False)
        for engine in (self.mine, self.model):
            for name in NAMES:
                engine.execute(DDL.format(name))
            engine.execute("CREATE TABLE other (n INT)")
            engine.execute("INSERT INTO t SELECT CAST(id AS INT), CAST(id AS INT), 'a' FROM range(6)")
        self.theirs = cq_engine.connect(
            self.path, spark=spark, scheduler=False, duties=False, limits=Limits(lock_seconds=0.5)
        )

    def close(self) -> None:
        for engine in (self.theirs, self.mine, self.model):
            engine.close()

    def commit_beside(self, statement: str) -> None:
        """What the other process does, in the model as well."""
        self.theirs.execute(statement)
        self.model.execute(statement)

    def check(self, changes: dict[str, pa.Table], hook: Callable[[int], None]) -> Any:
        """The outcome of the changes, with what is done beside them when the files of the n-th try are there."""
        with _at("commit.staged", hook):
            mine = _outcome(self.mine, changes)
        assert mine == _outcome(self.model, changes)
        assert self.images(self.mine) == self.images(self.model)
        self.check_files()
        return mine

    def images(self, engine: cq_engine.Engine) -> list[Any]:
        newest = engine.catalog.newest_version
        text = "SELECT * FROM {} VERSION AS OF {}"
        return [
            sorted(engine.execute(text.format(name, version)).fetchall())
            for name in (*NAMES, "other")
            for version in range(max(1, newest - 4), newest + 1)
        ]

    def check_files(self) -> None:
        """Nothing is left of a try that was given up."""
        catalog = self.mine.catalog
        catalog.follow()
        with catalog.aside() as connection:
            assert connection.execute(schema.attempts.select()).all() == []
            assert connection.execute(schema.doomed.select()).all() == []
        layouts = catalog.view.layouts.values()
        named = {path for layout in layouts for path in layout.files}
        named |= {file.path for layout in layouts for each in layout.changes for file in each.files}
        assert {path.relative_to(self.path).as_posix() for path in self.path.rglob("*.parquet")} == named


@pytest.fixture
def warehouses(tmp_path: Path, spark: SparkSession) -> Iterator[Warehouses]:
    made = Warehouses(tmp_path, spark)
    yield made
    made.close()


@contextmanager
def _at(point: str, hook: Callable[[int], None]) -> Iterator[None]:
    times = 0
    known = faults.point

    def reached(name: str, file: Path | None = None) -> None:
        nonlocal times
        if name == point:
            times += 1
            faults.point = known  # what is done beside has such points, too
            try:
                hook(times)
            finally:
                faults.point = reached
        known(name, file)

    faults.point = reached
    try:
        yield
    finally:
        faults.point = known


def _outcome(engine: cq_engine.Engine, changes: dict[str, pa.Table]) -> Any:
    try:
        return engine.apply_changes(changes, **ROLES)
    except cq_engine.ConstraintError as error:
        return error.message, error.detail


def _changes(rows: list[tuple[str, int, int, int]]) -> pa.Table:
    """Operation, key, value and transaction of each."""
    found = [
        {"op": op, "k": k, "v": v, "w": "b", "txn": txn, "seq": n} for n, (op, k, v, txn) in enumerate(rows)
    ]
    kinds = {
        "op": pa.string(),
        "k": pa.int32(),
        "v": pa.int32(),
        "w": pa.string(),
        "txn": pa.int32(),
        "seq": pa.int32(),
    }
    return pa.Table.from_pylist(found, pa.schema(list(kinds.items())))


FIVE = {"t": _changes([("U", 0, 10, 1), ("U", 1, 11, 1), ("D", 2, 0, 2), ("I", 7, 17, 2), ("S", 3, 13, 3)])}


def test_others_commit_to_another_table(warehouses: Warehouses, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not wait, and what the changes do to their keys is not computed again."""
    computed = []
    steps = large_changes._steps
    monkeypatch.setattr(large_changes, "_steps", lambda *given: computed.append(1) or steps(*given))
    first = warehouses.mine.catalog.newest_version + 1

    def beside(n: int) -> None:
        if n == 1:
            warehouses.commit_beside("INSERT INTO other VALUES (1)")

    assert warehouses.check(FIVE, beside) == [first + 1, first + 2, first + 3]
    assert len(computed) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET v = -1 WHERE k IN (0, 2, 5)",
        "DELETE FROM t WHERE k IN (3, 4)",
        "DELETE FROM t WHERE k = 1",
        "INSERT INTO t VALUES (7, 0, 'c')",
        "INSERT OVERWRITE t VALUES (0, 10, 'b')",
    ],
)
def test_others_commit_to_the_table(warehouses: Warehouses, statement: str) -> None:
    warehouses.check(FIVE, lambda n: warehouses.commit_beside(statement) if n == 1 else None)


def test_others_commit_again_and_again(warehouses: Warehouses) -> None:
    """In the end they have to wait."""
    tries = warehouses.mine.catalog.limits.commit_tries
    reached = []

    def beside(n: int) -> None:
        reached.append(n)
        if n <= tries:
            warehouses.commit_beside(f"UPDATE t SET v = v + 1 WHERE k IN (0, 3, {n})")
        else:
            with pytest.raises(cq_engine.CQError):
                warehouses.theirs.execute("INSERT INTO other VALUES (2)")

    assert len(warehouses.check(FIVE, beside)) == 3
    assert reached == list(range(1, tries + 2))


def test_the_table_is_altered_meanwhile(warehouses: Warehouses) -> None:
    def beside(n: int) -> None:
        if n == 1:
            warehouses.mine.execute("ALTER TABLE t ADD COLUMN more INT")

    before = warehouses.mine.catalog.newest_version
    with _at("commit.staged", beside), pytest.raises(cq_engine.ConflictError, match="altered or dropped"):
        warehouses.mine.apply_changes(FIVE, **ROLES)
    assert warehouses.mine.catalog.newest_version == before
    warehouses.check_files()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 10))])
def test_random_commits(warehouses: Warehouses, seed: int) -> None:
    rng = random.Random(seed)
    outcomes = []
    for _ in range(3):
        rows = [
            ("S" if rng.random() < 0.9 else "U", rng.randrange(8), rng.randrange(100), rng.randrange(3))
            for _ in range(7)
        ]
        changes = {name: _changes(rng.sample(rows, 5)) for name in NAMES}

        def beside(n: int) -> None:
            if n <= 2 and rng.random() < 0.6:
                name, k = rng.choice(NAMES), rng.randrange(8)
                statements = (
                    f"DELETE FROM {name} WHERE k >= {k}",
                    f"MERGE INTO {name} USING (SELECT {k} AS k) s ON {name}.k = s.k {MERGED}",
                    f"INSERT INTO other VALUES ({k})",
                )
                warehouses.commit_beside(rng.choice(statements))

        outcomes.append(warehouses.check(changes, beside))
    assert any(isinstance(each, list) for each in outcomes)
