"""An engine without threads of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.api.engine import Engine


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        yield engine
