"""A source of Spark, the format `cq`: the deltas of a continuous query for `spark.read` and `spark.readStream`.

PySpark finds it by itself, by the module `pyspark_cq`. What stands here runs in Python processes of Spark: some of the
driver's plan (`log`), those of the executors read (`rows`). None of them starts a JVM, takes duties or writes.
"""
