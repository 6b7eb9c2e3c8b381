"""What every test may ask for: one Spark for the whole run, and a place for a warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cq_engine.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The tuned local session, kept small: two cores, 2 GB."""
    session = spark_session({"spark.master": "local[2]", "spark.driver.memory": "2g"})
    yield session
    session.stop()


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """The path of a warehouse that does not exist yet."""
    return tmp_path / "warehouse"
