"""Spark jobs of a call (`core.calls`): they carry its tag, by which they can be stopped and no others."""

from __future__ import annotations

from collections.abc import Hashable

from pyspark.sql import SparkSession

from cq_engine.core import calls
from cq_engine.spark.session_kind import is_connect
from cq_engine.spark.sql import Py4JError

__all__ = ["LOST", "cancel_all", "has_ended", "stop_jobs", "tag_jobs"]

LOST: tuple[type[Exception], ...] = (Py4JError, OSError, AttributeError)
"""What the first use of a session raises whose JVM has gone, or (AttributeError: no Java object) that was stopped."""


def tag_jobs(spark: SparkSession) -> None:
    """The jobs that this thread begins are those of its call, if it is in one.

    Raises Interrupted or CQError where the call is cancelled, LOST where the session cannot be used any more.
    """
    call = calls.current()
    if call is None:
        return
    tag = call.tag
    if is_connect(spark):
        call.attach(
            _work_of(spark),
            lambda: spark.addTag(tag),
            lambda: spark.interruptTag(tag),
            lambda: spark.removeTag(tag),
        )
        return
    context = spark.sparkContext
    call.attach(
        _work_of(spark),
        lambda: context.addJobTag(tag),
        lambda: context.cancelJobsWithTag(tag),
        lambda: context.removeJobTag(tag),
    )


def stop_jobs(spark: SparkSession) -> None:
    """Cancels the calls of other threads that use the session's Spark."""
    calls.stop_all(_work_of(spark))


def cancel_all(spark: SparkSession) -> None:
    """Cancels everything that the session's Spark runs; of a server of Spark Connect, what this session has asked for."""
    if is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


def has_ended(spark: SparkSession) -> bool:
    """Whether the session can never be used again: it was stopped, or its JVM is gone. Not known of Spark Connect, whose client
    tries to reach its server for minutes."""
    if is_connect(spark):
        return False
    for _ in range(2):  # a connection that was lost fails once; Py4J makes another one
        try:
            spark.sparkContext.getLocalProperty("cq")
        except AttributeError:
            return True
        except LOST:
            continue
        return False
    return True


def _work_of(spark: SparkSession) -> Hashable:
    return ("spark", id(spark if is_connect(spark) else spark.sparkContext))
