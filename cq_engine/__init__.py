"""Continuous queries for Apache Spark: what changed in the answer, never the whole answer again."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cq_engine.api.consuming import Messages
    from cq_engine.api.engine import Engine, connect
    from cq_engine.api.following import Follow
    from cq_engine.api.handles import QueryDescription, TransactionHandle
    from cq_engine.core.clock import Clock, ManualClock, SystemClock
    from cq_engine.core.errors import (
        AnalysisError,
        CatalogError,
        ConflictError,
        ConstraintError,
        CQError,
        CQSyntaxError,
        DestinationError,
        DiskError,
        LeaseError,
        Location,
        RefreshError,
        ResultKeyError,
        StorageError,
        TransactionError,
    )
    from cq_engine.destinations import Delta, DeltaBatch
    from cq_engine.destinations.follow import Progress
    from cq_engine.destinations.queues.message import Message
    from cq_engine.launch.session import spark_session
    from cq_engine.query.result import Result
    from cq_engine.refresh.refresh import Refresh

__version__ = "0.1.0"

__all__ = [
    "AnalysisError",
    "CQError",
    "CQSyntaxError",
    "CatalogError",
    "Clock",
    "ConflictError",
    "ConstraintError",
    "Delta",
    "DeltaBatch",
    "DestinationError",
    "DiskError",
    "Engine",
    "Follow",
    "LeaseError",
    "Location",
    "ManualClock",
    "Message",
    "Messages",
    "Progress",
    "QueryDescription",
    "Refresh",
    "RefreshError",
    "Result",
    "ResultKeyError",
    "StorageError",
    "SystemClock",
    "TransactionError",
    "TransactionHandle",
    "connect",
    "spark_session",
]

_HOME = {
    "Clock": "cq_engine.core.clock",
    "ManualClock": "cq_engine.core.clock",
    "SystemClock": "cq_engine.core.clock",
    "Delta": "cq_engine.destinations",
    "DeltaBatch": "cq_engine.destinations",
    "Engine": "cq_engine.api.engine",
    "Follow": "cq_engine.api.following",
    "Message": "cq_engine.destinations.queues.message",
    "Messages": "cq_engine.api.consuming",
    "Progress": "cq_engine.destinations.follow",
    "QueryDescription": "cq_engine.api.handles",
    "TransactionHandle": "cq_engine.api.handles",
    "connect": "cq_engine.api.engine",
    "AnalysisError": "cq_engine.core.errors",
    "CatalogError": "cq_engine.core.errors",
    "ConflictError": "cq_engine.core.errors",
    "ConstraintError": "cq_engine.core.errors",
    "CQError": "cq_engine.core.errors",
    "CQSyntaxError": "cq_engine.core.errors",
    "DestinationError": "cq_engine.core.errors",
    "DiskError": "cq_engine.core.errors",
    "LeaseError": "cq_engine.core.errors",
    "Location": "cq_engine.core.errors",
    "RefreshError": "cq_engine.core.errors",
    "ResultKeyError": "cq_engine.core.errors",
    "StorageError": "cq_engine.core.errors",
    "TransactionError": "cq_engine.core.errors",
    "Result": "cq_engine.query.result",
    "Refresh": "cq_engine.refresh.refresh",
    "spark_session": "cq_engine.launch.session",
}
"""Where each public name lives: modules are imported when a name is first used, so that `cq --help` is quick."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
