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
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from cq_engine.storage.reader import Reader
from tests.transactions.harness import Small


@pytest.fixture
def limits() -> Limits:
    """Those of `small`; a test may have others by its parameters."""
    return DEFAULT_LIMITS


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path, limits: Limits) -> Iterator[Small]:
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=timezone.utc))
    catalog = Catalog.open(str(tmp_path / "warehouse"), clock=clock, limits=limits)
    services = Services(catalog, Reader(catalog, lambda: spark), lambda: spark, clock)
    yield Small(services, clock)
    catalog.close()
