"""The process that is killed while it forgets: `python -m tests.recovery.upkeep warehouse`, with CQ_FAULT."""

from __future__ import annotations

import os
import sys

import cq_engine
from cq_engine.api.engine import Engine
from tests.recovery.worker import borrowed, own

TOTALS = "SELECT g, count(*) AS n FROM t t GROUP BY g"


def work(engine: Engine) -> None:
    """A history of merged commits, of which a query has processed a part and another nothing, and what is forgotten."""
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY, g INT)")
    engine.execute(f"CREATE CONTINUOUS QUERY totals ON DEMAND AS {TOTALS}")
    table = engine.catalog.state.tables["t"].storage
    for number in range(8):
        engine.execute(f"INSERT INTO t VALUES ({number}, {number % 3})")
        engine.execute(f"DELETE FROM t WHERE k = {number - 3}")
        engine.compactor.merge(table)
        if number in (1, 4):
            engine.refresh("totals")
    engine.vacuum(retain="0 hours")


if __name__ == "__main__":
    spark = borrowed() if "PYSPARK_GATEWAY_PORT" in os.environ else own()
    work(cq_engine.connect(sys.argv[1], spark=spark, scheduler=False))
