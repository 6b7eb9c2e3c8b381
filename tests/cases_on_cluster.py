"""Acceptance cases on a cluster: a standalone master with two one-core workers, a bucket of moto's server, PostgreSQL.

    python -m tests.cases_on_cluster CASES [--limits DEFAULT|EXECUTORS] [-- ARGUMENTS of run_cases.py]

CASES is the directory of `run_cases.py` and `cq_adapter.py`, which stay as they are: what the adapter opens is opened in a
prefix of the bucket and in a database of its own. One process and one session run all cases. Each case is told of as soon as it
has ended; the last line says how many tasks each executor has run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.launch.session import spark_session
from tests import object_store, postgres
from tests.cluster import DRIVER, cluster, end_in_order
from tests.limits import EXECUTORS
from tests.object_store import ObjectStoreServer

LIMITS: dict[str, dict[str, Any]] = {"DEFAULT": {}, "EXECUTORS": {**EXECUTORS, "pending_rows": 0}}
"""Limits by name: as users have them, or such that executors read and write whatever they can."""


@dataclass
class Warehouses:
    """Where the cases' warehouses are: each in a prefix of the bucket, with a catalog in a database that goes with the next."""

    store: ObjectStoreServer
    server: str
    limits: Limits
    spark: SparkSession
    opened: list[str] = field(default_factory=list)

    def connect(self, directory: str, **more: Any) -> cq_engine.Engine:
        """Opens one in the place of that which the adapter asks for in a directory."""
        if self.opened:
            self._drop(self.opened[-1])
        self.opened.append(postgres.fresh(self.server))
        return cq_engine.connect(
            f"s3://lake/{Path(directory).name}",
            self.opened[-1],
            **{**more, "spark": self.spark},
            conf=self.store.options,
            limits=self.limits,
        )

    def _drop(self, url: str) -> None:
        with postgres.connected(f"{self.server}/postgres") as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


def tasks(spark: SparkSession) -> dict[str, int]:
    """How many tasks each executor has ended, by the driver's record of them."""
    found = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    each = [found.apply(n) for n in range(found.size())]
    return {one.id(): one.completedTasks() for one in each if one.id() != "driver"}


def prepared(directory: Path, warehouses: Warehouses) -> Callable[[], int]:
    """The `main` of run_cases.py in that directory, with its adapter for cq-engine over these warehouses."""
    sys.path.insert(0, str(directory))
    runner, adapter = importlib.import_module("run_cases"), importlib.import_module("cq_adapter")
    adapter.cq_engine = SimpleNamespace(connect=warehouses.connect)
    adapter._shared_spark = lambda: warehouses.spark
    runner.load_adapter = lambda _: adapter.CqEngine
    main: Callable[[], int] = runner.main
    return main


def main() -> int:
    words, arguments = _arguments(sys.argv[1:])
    end_in_order()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # somebody waits for each case
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    with (
        tempfile.TemporaryDirectory(prefix="cq-cases-", ignore_cleanup_errors=True) as place,
        postgres.server() as server, object_store.server() as store, cluster(Path(place)) as made,
    ):  # fmt: skip
        spark = spark_session({"spark.master": made.url, **DRIVER})
        try:
            warehouses = Warehouses(store, server, Limits(**LIMITS[words.limits]), spark)
            run = prepared(words.cases.resolve(), warehouses)
            sys.argv = ["run_cases.py", "-v", *arguments]
            status = run()
            print(json.dumps({"tasks": tasks(spark), "warehouses": len(warehouses.opened)}))
        finally:
            spark.stop()
    return status


def _arguments(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own, and what stands behind `--`."""
    end = given.index("--") if "--" in given else len(given)
    own, arguments = given[:end], given[end + 1 :]
    parser = argparse.ArgumentParser(
        usage="python -m tests.cases_on_cluster CASES [--limits DEFAULT|EXECUTORS] [-- ARGUMENTS of run_cases.py]",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("cases", type=Path, help="the directory of run_cases.py and cq_adapter.py")
    parser.add_argument("--limits", choices=sorted(LIMITS), default="DEFAULT")
    return parser.parse_args(own), arguments


if __name__ == "__main__":
    sys.exit(main())
