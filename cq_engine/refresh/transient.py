"""Which failures are the machine's, and pass without anybody's doing, and which live in the data or in the query."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from cq_engine.core import calls
from cq_engine.core.errors import ConflictError, LeaseError, SourceUnavailableError, StorageError
from cq_engine.spark.sql import SPARK_ERRORS

__all__ = ["is_transient"]

_PERMANENT = frozenset({None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL})
"""What is wrong with a file itself: it is missing, or (None) what Arrow finds in it is not Parquet."""

_OF_MACHINE = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|Too many open files|Connection re(?:fused|set)"
    r"|ExecutorLostFailure|FetchFailed|Could not find (?:CoarseGrained|HeartbeatReceiver)"
    r"|SparkContext (?:was|has been) (?:shut ?down|stopped)|stopped SparkContext|session (?:was|is) closed"
    r"|SPARK_JOB_CANCELLED|Job \d+ cancelled|Gateway must be connected|StatusCode\.UNAVAILABLE"
)
"""What Spark says, as its exceptions have no types for it: no room, lost executors, a context that stops, and work that
was cancelled along with somebody else's."""

_OF_DATA = re.compile(r"SQLSTATE: ?(?:2|42)")
"""Values, keys and the query's text, whatever the error quotes of them."""


def is_transient(error: BaseException) -> bool:
    """Whether the same refresh may succeed later though nobody changes data or query.

    The innermost cause that is known decides: a StorageError because of a disk that is full is transient, one because of
    a file that is missing is not, and a RefreshError without a known cause lives in the data. What fails in a call that was
    cancelled fails because of that.

    >>> is_transient(OSError(errno.ENOSPC, "No space left on device")), is_transient(KeyError("x"))
    (True, False)
    """
    call = calls.current()
    if call is not None and call.cancelled:
        return True
    return next((found for each in _innermost_first(error) if (found := _verdict(each)) is not None), False)


def _innermost_first(error: BaseException) -> Iterator[BaseException]:
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__
    return reversed(chain)


def _verdict(error: BaseException) -> bool | None:
    """True: the machine's; False: not; None: what wraps it decides."""
    match error:
        case SourceUnavailableError():
            return True
        case OSError():
            return error.errno not in _PERMANENT
        case OperationalError() | InterfaceError() | PoolTimeoutError() | ConflictError() | LeaseError():
            return True
        case DBAPIError():
            return error.connection_invalidated
        case StorageError():
            return True
        case ValueError():  # Arrow's, of a file that is cut off
            return False
        case _ if isinstance(error, SPARK_ERRORS):
            return _spark(error)
    return None


def _spark(error: BaseException) -> bool | None:
    """Py4J's own errors, which are not Java's, are of a JVM that does not answer."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "Py4JNetworkError" in kinds:
        return True
    text = str(error)
    if _OF_DATA.search(text):
        return False
    if "Py4JError" in kinds and "Py4JJavaError" not in kinds and "Trace:" not in text:
        return True
    if _OF_MACHINE.search(text):
        return True
    return False if "FAILED_READ_FILE" in text else None  # cut off, or no Parquet
