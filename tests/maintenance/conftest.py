"""An engine without threads of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.limits import DEFAULT_LIMITS, Limits


@pytest.fixture
def limits() -> Limits:
    """Those of the engine; a module or a test may have others."""
    return DEFAULT_LIMITS


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path, limits: Limits) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=limits) as engine:
        yield engine
