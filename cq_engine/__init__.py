"""Continuous queries for Apache Spark: what changed in the answer, never the whole answer again."""

from typing import TYPE_CHECKING

from cq_engine.core.lazy import attributes

if TYPE_CHECKING:
    from cq_engine.api.connect import connect
    from cq_engine.api.consuming import Messages
    from cq_engine.api.engine import Engine
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
        SourceError,
        SourceUnavailableError,
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
    "SourceError",
    "SourceUnavailableError",
    "StorageError",
    "SystemClock",
    "TransactionError",
    "TransactionHandle",
    "connect",
    "spark_session",
]

__getattr__ = attributes(
    __name__,
    {
        "api.consuming": ["Messages"],
        "api.connect": ["connect"],
        "api.engine": ["Engine"],
        "api.following": ["Follow"],
        "api.handles": ["QueryDescription", "TransactionHandle"],
        "core.clock": ["Clock", "ManualClock", "SystemClock"],
        "core.errors": [
            "AnalysisError",
            "CatalogError",
            "ConflictError",
            "ConstraintError",
            "CQError",
            "CQSyntaxError",
            "DestinationError",
            "DiskError",
            "LeaseError",
            "Location",
            "RefreshError",
            "ResultKeyError",
            "SourceError",
            "SourceUnavailableError",
            "SourceUnavailableError",
            "StorageError",
            "TransactionError",
        ],
        "destinations": ["Delta", "DeltaBatch"],
        "destinations.follow": ["Progress"],
        "destinations.queues.message": ["Message"],
        "launch.session": ["spark_session"],
        "query.result": ["Result"],
        "refresh.refresh": ["Refresh"],
    },
)
