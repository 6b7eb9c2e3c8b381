"""Which failures of a refresh pass by themselves."""

from __future__ import annotations

import errno
import sqlite3

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from sqlalchemy.exc import IntegrityError, OperationalError

from cq_engine.core.errors import AnalysisError, ConflictError, RefreshError, ResultKeyError, StorageError
from cq_engine.refresh.transient import is_transient


def because(error: Exception, *causes: Exception) -> Exception:
    """The error with its chain of causes."""
    outer: BaseException = error
    for cause in causes:
        outer.__cause__ = cause
        outer = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")

MACHINE = [
    FULL,
    OSError(errno.EIO, "Input/output error"),
    PermissionError(errno.EACCES, "Permission denied"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    StorageError("cannot write"),
    ConflictError("somebody was faster"),
    OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full")),
    OperationalError("SELECT", {}, Exception("server closed the connection unexpectedly")),
    Py4JNetworkError("Answer from Java side is empty"),
    Py4JError("An error occurred while calling o12.sql"),
    PySparkException("Job aborted due to stage failure: java.io.IOException: No space left on device"),
    PySparkException("Job 7 cancelled because SparkContext was shut down"),
    PySparkException("[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group x SQLSTATE: HY008"),
    PySparkException("[TASK_WRITE_FAILED] failed SQLSTATE: 58030 Caused by: No space left on device"),
    because(RefreshError("the refresh of q failed"), StorageError("cannot write"), FULL),
    because(RefreshError("the refresh of q failed"), ConflictError("somebody was faster")),
]
DATA = [
    RefreshError("overflow"),
    ResultKeyError("two rows have the result key"),
    AnalysisError("no such column"),
    KeyError("_w"),
    MemoryError(),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
    pa.ArrowInvalid("Parquet magic bytes not found in footer"),
    IntegrityError("INSERT", {}, sqlite3.IntegrityError("UNIQUE constraint failed")),
    PySparkException("[CAST_INVALID_INPUT] The value 'No space left on device' ... SQLSTATE: 22018"),
    PySparkException("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"),
    PySparkException("something that nobody knows"),
    because(StorageError("cannot read"), FileNotFoundError(errno.ENOENT, "No such file")),
    because(StorageError("cannot read"), pa.ArrowInvalid("not Parquet")),
    because(RefreshError("failed"), PySparkException("[DIVIDE_BY_ZERO] SQLSTATE: 22012")),
]


@pytest.mark.parametrize("error", MACHINE, ids=repr)
def test_of_the_machine(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", DATA, ids=repr)
def test_of_the_data(error: Exception) -> None:
    assert not is_transient(error)


def test_a_circle_of_causes_ends() -> None:
    first, second = RefreshError("a"), RefreshError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_transient(first)
