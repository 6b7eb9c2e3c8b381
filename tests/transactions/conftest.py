"""Fixtures of the transaction tests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cq_engine.catalog.store import Catalog
from cq_engine.context.services import Services
from cq_engine.core.clock import ManualClock
from cq_engine.storage.reader import Reader
from tests.transactions.harness import Small


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> Iterator[Small]:
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=timezone.utc))
    catalog = Catalog.open(str(tmp_path / "warehouse"), clock=clock)
    services = Services(catalog, Reader(catalog, lambda: spark), lambda: spark, clock)
    yield Small(services, clock)
    catalog.close()
