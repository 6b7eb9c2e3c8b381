"""What `cq` does for a quick start: Spark starts while the engine is being imported, its classes are stored after."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

__all__ = ["needs_spark", "prepare_later", "start_spark"]

_SPARK_WORDS = re.compile(
    r"\b(SELECT|VALUES|INSERT|UPDATE|DELETE|MERGE|COPY|TRUNCATE|REFRESH|EXPLAIN|FUNCTION|CHANGES)\b",
    re.IGNORECASE,
)


def needs_spark(sql: str) -> bool:
    """True where it looks as if the statements will use Spark; a guess costs or saves time and changes nothing."""
    return _SPARK_WORDS.search(sql) is not None


def start_spark(conf: Iterable[tuple[str, str]]) -> None:
    """Starts Spark for the engine that is being opened with these options; to be called in a thread."""
    from cq_engine.launch.session import prestart

    prestart({name: value for name, value in conf if name.startswith("spark.")})


def prepare_later() -> None:
    """Has an archive of Spark's classes made where this process started Spark without one."""
    session = sys.modules.get("cq_engine.launch.session")
    if session is not None:
        from cq_engine.launch.class_archive import make_later

        make_later(session.missing_archive())
