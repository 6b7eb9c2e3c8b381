"""Opening a warehouse: its options are checked, its catalog is opened, and an engine stands on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from cq_engine.api.engine import Engine
from cq_engine.catalog.store import Catalog
from cq_engine.core.clock import Clock, SystemClock
from cq_engine.core.limits import Limits
from cq_engine.core.memory import memory_bytes
from cq_engine.core.options import STORAGE, check_conf
from cq_engine.spark.jobs import LOST

__all__ = ["connect"]

_HEAP = "spark.driver.memory"
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}


def connect(
    warehouse: str | Path,
    catalog: str | None = None,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
    conf: Mapping[str, str] | None = None,
    read_only: bool = False,
    scheduler: bool = True,
    limits: Limits | None = None,
    duties: bool | None = None,
) -> Engine:
    """Opens the warehouse at a path or URL; creates it if it is absent.

    Args:
        warehouse: a directory, `s3://bucket/prefix`, `gs://bucket/prefix` or
            `abfss://container@account.dfs.core.windows.net/prefix`.
        catalog: SQLAlchemy URL of the catalog database; default a SQLite file inside the warehouse, where that is a
            directory.
        spark: the session to use, never stopped by the engine; default `spark_session()`, started when first needed.
        clock: default the system's, in UTC.
        conf: engine options; `spark.*` go to the session that the engine starts, `storage.*` to the object store.
        read_only: queries only.
        scheduler: False: only `refresh` and `drain` move queries.
        limits: other numeric bounds of the parts, for tests and experiments; default `Limits.for_memory` of
            what this process may use.
        duties: whether this process refreshes, delivers and looks after the files: True: yes, or it is an error; False:
            never; None: as soon as no other process does, without a scheduler until one with a scheduler is there. Any
            number of processes commit and read besides.

    Raises:
        LeaseError: another process has the duties that this one is to take; the error names it.
        CatalogError: there is no warehouse and `read_only` forbids to make one, or it is of another version.
        StorageError: the store of the warehouse cannot be reached.
        AnalysisError: `conf` has a name that is no option, or a value that an option does not have.
    """
    checked = check_conf(conf or {})
    storage = {n.removeprefix(STORAGE): checked.pop(n) for n in list(checked) if n.startswith(STORAGE)}
    chosen = clock or SystemClock()
    opened = Catalog.open(
        str(warehouse), url=catalog, read_only=read_only, clock=chosen, limits=limits or Limits.for_memory(memory_bytes(), _heap(checked, spark)),
        duties=duties, yields=duties is None and not scheduler, storage=storage,
    )  # fmt: skip
    try:
        return Engine(opened, spark, chosen, checked, scheduler)
    except BaseException:
        opened.close()
        raise


def _heap(conf: Mapping[str, str], spark: SparkSession | None) -> int | None:
    """Bytes of Java's heap, where a session or an option says it; None: the engine's default, or what Java would not understand."""
    text = conf.get(_HEAP)
    if spark is not None:
        with suppress(*LOST):
            text = spark.conf.get(_HEAP, "1g")
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", (text or "").strip().lower())
    return int(found[1]) << _SHIFTS[found[2] or "m"] if found is not None else None
