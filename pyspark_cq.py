"""Gives every session of Spark the format `cq`: PySpark takes `DefaultSource` of the modules that are called `pyspark_…`."""

from cq_engine.source.source import SparkSource as DefaultSource

__all__ = ["DefaultSource"]
