"""Rows that executors keep: let go of at the end of a block, also where that comes after the end of Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JError

from cq_engine.spark.persisting import persisted


class _Frame:
    def __init__(self, ended: bool) -> None:
        self.ended, self.kept = ended, False

    def persist(self, _level: object) -> _Frame:
        self.kept = True
        return self

    def unpersist(self) -> None:
        if self.ended:
            raise Py4JError("Target Object ID does not exist for this gateway :o1")
        self.kept = False


def _numbers(frame: Any) -> Iterator[int]:
    with persisted(frame):
        yield from range(3)


def test_rows_are_kept_until_the_end() -> None:
    frame = _Frame(ended=False)
    numbers = _numbers(frame)
    assert next(numbers) == 0
    assert frame.kept
    del numbers
    gc.collect()
    assert not frame.kept


def test_a_spark_that_has_ended_hides_no_other_error() -> None:
    with pytest.raises(ValueError, match="its own"), persisted(_Frame(ended=True)):  # type: ignore[arg-type]
        raise ValueError("its own")


def test_a_generator_may_be_closed_after_spark() -> None:
    numbers = _numbers(_Frame(ended=True))
    assert next(numbers) == 0
    numbers.close()  # type: ignore[attr-defined]
