"""An engine whose calls are written down, as Python, so that what went wrong can be run again by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from tests.adversary.history import Batch, Transaction
from tests.limits import limit

__all__ = ["Recorder"]


class Recorder:
    """Owns the engine, which may be closed and opened again; or a stand-in for it."""

    def __init__(
        self, directory: Path, spark: SparkSession, bounds: Mapping[str, Any], stand_in: Any = None
    ) -> None:
        self.stand_in = stand_in
        self.directory = directory
        self.spark = spark
        self.bounds = dict(bounds)
        self.lines: list[str] = []
        self.engine = self._open()

    def _open(self) -> Any:
        self.lines.append(f"engine = connect(directory, scheduler=False, limits=Limits(**{self.bounds}))")
        return self.stand_in or cq_engine.connect(
            self.directory, spark=self.spark, scheduler=False, conf={"maintenance": "manual"},
            limits=Limits(**self.bounds),
        )  # fmt: skip

    def reopen(self) -> None:
        self.lines.append("engine.close()")
        self.engine.close()
        self.engine = self._open()

    def limit(self, bounds: Mapping[str, Any]) -> None:
        """Other bounds from now on; those not named are the default ones again."""
        self.bounds = dict(bounds)
        back = {name: getattr(DEFAULT_LIMITS, name) for name in vars(DEFAULT_LIMITS)}
        self.lines.append(f"limit(engine, **{self.bounds})")
        limit(self.engine, **(back | self.bounds))

    def execute(self, sql: str) -> cq_engine.Result:
        self.lines.append(f"engine.execute({sql!r})")
        return self.engine.execute(sql)

    def quiet(self, sql: str) -> Iterable[tuple[Any, ...]]:
        """Rows of a query, which is not written down."""
        return self.engine.execute(sql).fetchall()

    def refresh(self, name: str) -> None:
        self.lines.append(f"engine.refresh({name!r})")
        self.engine.refresh(name)

    def maintain(self) -> None:
        self.lines.append("engine.maintain()")
        self.engine.maintain()

    def transaction(self, step: Transaction) -> int | None:
        """Runs the statements; the version, if there is one."""
        shown = [s if isinstance(s, str) else (s[0], _rows(s[1])) for s in step.steps]
        self.lines.append(f"transaction(engine, {shown!r}, {step.outcome!r})")
        try:
            with self.engine.transaction() as tx:
                for each in step.steps:
                    if isinstance(each, str):
                        tx.execute(each)
                    else:
                        tx.insert(each[0], each[1])
                _give_up(step)
        except _GivenUp:
            return None
        return tx.commit_version

    def batch(self, batch: Batch) -> list[int]:
        shown = {name: _rows(rows) for name, rows in batch.changes.items()}
        self.lines.append(f"batch(engine, {shown!r})")
        return self.engine.apply_changes(batch.changes, transaction="txn", order="seq")


class _GivenUp(Exception):
    pass


def _give_up(step: Transaction) -> None:
    if step.outcome == "rollback":
        raise _GivenUp


def _rows(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.to_pylist()  # type: ignore[no-any-return]
