"""Which kind of session one is: with Spark in this process, or a client of Spark Connect."""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["is_connect"]


def is_connect(spark: SparkSession) -> bool:
    """True where the session is a Spark Connect client."""
    return ".connect." in type(spark).__module__
