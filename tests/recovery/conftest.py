"""Processes that die, and engines that come after them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.api.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
LONG = 120
"""Seconds that nothing here should take."""

Worker = Callable[..., "subprocess.CompletedProcess[str]"]
Connect = Callable[..., Engine]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment, with the checkout importable."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **variables}


@pytest.fixture
def worker(spark: SparkSession) -> Worker:
    """Runs tests/recovery/worker.py, or another module, to its end, in the test's Spark or one of its own."""

    def run(
        warehouse: Path,
        calls: Path,
        fault: str,
        *,
        own_spark: bool = False,
        module: str = "tests.recovery.worker",
    ) -> Any:
        variables = {"CQ_FAULT": fault}
        gateway: Any = spark.sparkContext._gateway
        if not own_spark:
            variables["PYSPARK_GATEWAY_PORT"] = str(gateway.gateway_parameters.port)
            variables["PYSPARK_GATEWAY_SECRET"] = gateway.gateway_parameters.auth_token
        return subprocess.run(
            [sys.executable, "-m", module, str(warehouse), str(calls)],
            env=environment(**variables),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )

    return run


@pytest.fixture
def connect(spark: SparkSession, warehouse: Path) -> Iterator[Connect]:
    """Opens the test's warehouse; the test need not close it."""
    with ExitStack() as stack:

        def opened(**options: Any) -> Engine:
            engine = cq_engine.connect(warehouse, spark=spark, **options)
            stack.callback(engine.close)
            return engine

        yield opened
