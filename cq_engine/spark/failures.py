"""What Spark, files and the stack fail with, as errors that a person can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cq_engine.core.disk import disk_error
from cq_engine.core.errors import AnalysisError
from cq_engine.spark.sql import JVM_ERRORS, TOO_COMPLEX, translate_spark_error

__all__ = ["plain_errors"]


@contextmanager
def plain_errors(doing: str, warehouse: str) -> Iterator[None]:
    """A block for `doing` ("refresh q") that raises CQErrors in place of Spark's, the system's and RecursionError."""
    try:
        yield
    except JVM_ERRORS as error:  # a connection is not of a file
        raise translate_spark_error(error) from error
    except OSError as error:
        raise disk_error(doing, error, warehouse) from error
    except RecursionError as error:
        raise AnalysisError("the statement is nested too deeply", hint=TOO_COMPLEX) from error
