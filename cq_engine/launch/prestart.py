"""What `cq` does for a quick start: Spark starts while the engine is being imported, its classes are stored after."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable

__all__ = ["import_spark", "needs_spark", "prepare_later", "start_spark"]

_importing = threading.Lock()

_SPARK_WORDS = re.compile(
    r"\b(SELECT|VALUES|INSERT|UPDATE|DELETE|MERGE|COPY|TRUNCATE|REFRESH|EXPLAIN|FUNCTION|CHANGES)\b",
    re.IGNORECASE,
)
_NAMES = r"[\w\s,.`]+"
_SMALL_SELECT = re.compile(
    rf"\s*SELECT\s+(\*|count\(\*\)({_NAMES})?|{_NAMES})\s+FROM\s+[\w`]+(\s+VERSION\s+AS\s+OF\s+\d+)?"
    rf"(\s+ORDER\s+BY\s+{_NAMES})?(\s+LIMIT\s+\d+)?\s*;?\s*",
    re.IGNORECASE,
)


def needs_spark(sql: str) -> bool:
    """True where it looks as if the statements will use Spark; a guess costs or saves time and changes nothing.

    Of a single SELECT of columns it says no: most such relations are small, and answered from memory (`query.small`).
    """
    return _SPARK_WORDS.search(sql) is not None and _SMALL_SELECT.fullmatch(sql) is None


def import_spark() -> None:
    """Imports Spark's modules, which import each other; to be called before anything that may import one of them.

    Two threads that begin at different ends of such a circle are kept from waiting for each other for ever: Python lets one of
    them go on with a module that is not complete, and the import fails.
    """
    with _importing:
        import pyspark.sql  # noqa: F401 - whoever comes next finds it complete


def start_spark(conf: Iterable[tuple[str, str]]) -> None:
    """Starts Spark for the engine that is being opened with these options; to be called in a thread."""
    import_spark()
    from cq_engine.launch.session import prestart

    prestart({name: value for name, value in conf if name.startswith("spark.")})


def prepare_later() -> None:
    """Has an archive of Spark's classes made where this process started Spark without one."""
    session = sys.modules.get("cq_engine.launch.session")
    if session is not None:
        from cq_engine.launch.class_archive import make_later

        make_later(session.missing_archive())
