"""The process that is killed: `python worker.py warehouse calls`, with CQ_FAULT in the environment.

With PYSPARK_GATEWAY_PORT in the environment it uses the Spark that the test runs, and no Spark of its own: starting
one takes longer than all the rest, and what a crash leaves behind is not Spark's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import cq_engine
from tests.recovery.story import connect_story, tell


def main(warehouse: str, calls: str) -> None:
    """Tells the story; the fault point does not let it come to the end."""
    shared = "PYSPARK_GATEWAY_PORT" in os.environ
    engine = cq_engine.connect(warehouse, spark=borrowed() if shared else own(), scheduler=False)
    connect_story(engine, Path(calls))
    tell(engine)
    engine.close()


def own() -> SparkSession:
    return cq_engine.spark_session({"spark.master": "local[2]", "spark.driver.memory": "1g"})


def borrowed() -> SparkSession:
    """A session of its own in the Spark of the test's process."""
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    java_context = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    conf = SparkConf(_jvm=jvm, _jconf=java_context.getConf())
    context = SparkContext(gateway=gateway, jsc=java_context, conf=conf)
    return SparkSession(context).newSession()


if __name__ == "__main__":
    main(*sys.argv[1:3])
