"""Continuous queries for Apache Spark: what changed in the answer, never the whole answer again."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cq_engine.clock import Clock, ManualClock, SystemClock
    from cq_engine.destinations import Delta, DeltaBatch
    from cq_engine.engine import Engine, connect
    from cq_engine.errors import (
        AnalysisError,
        CatalogError,
        ConflictError,
        ConstraintError,
        CQError,
        CQSyntaxError,
        DestinationError,
        LeaseError,
        Location,
        RefreshError,
        ResultKeyError,
        StorageError,
        TransactionError,
    )
    from cq_engine.handles import QueryDescription, TransactionHandle
    from cq_engine.result import Result
    from cq_engine.runtime.refresh import Refresh
    from cq_engine.session import spark_session

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
    "Engine",
    "LeaseError",
    "Location",
    "ManualClock",
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
    "Clock": "cq_engine.clock",
    "ManualClock": "cq_engine.clock",
    "SystemClock": "cq_engine.clock",
    "Delta": "cq_engine.destinations",
    "DeltaBatch": "cq_engine.destinations",
    "Engine": "cq_engine.engine",
    "QueryDescription": "cq_engine.handles",
    "TransactionHandle": "cq_engine.handles",
    "connect": "cq_engine.engine",
    "AnalysisError": "cq_engine.errors",
    "CatalogError": "cq_engine.errors",
    "ConflictError": "cq_engine.errors",
    "ConstraintError": "cq_engine.errors",
    "CQError": "cq_engine.errors",
    "CQSyntaxError": "cq_engine.errors",
    "DestinationError": "cq_engine.errors",
    "LeaseError": "cq_engine.errors",
    "Location": "cq_engine.errors",
    "RefreshError": "cq_engine.errors",
    "ResultKeyError": "cq_engine.errors",
    "StorageError": "cq_engine.errors",
    "TransactionError": "cq_engine.errors",
    "Result": "cq_engine.result",
    "Refresh": "cq_engine.runtime.refresh",
    "spark_session": "cq_engine.session",
}
"""Where each public name lives: modules are imported when a name is first used, so that `cq --help` is quick."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
