"""Gives every session of Spark the format `cq`: PySpark takes `DefaultSource` of the modules that are called `pyspark_…`."""

from cq_engine.data_source.source import SparkSource as DefaultSource

__all__ = ["DefaultSource"]
