"""A warehouse, and a directory into which others write files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.limits import Limits
from tests.sources.files.inbox import LOW


@pytest.fixture
def opened(once: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines = []

    def connect(limits: Limits = LOW) -> Engine:
        engines.append(cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(opened: Callable[..., Engine]) -> Engine:
    return opened()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path
