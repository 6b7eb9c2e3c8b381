"""A session of a Spark that runs elsewhere, by Spark Connect: this process needs no Java and holds no rows of tasks."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from cq_engine.core.errors import CQError
from cq_engine.launch.settings import SQL_SETTINGS

__all__ = ["REMOTE", "remote_session"]

REMOTE = "spark.remote"
"""The setting that names a server of Spark Connect."""
_PORT = 15002
_SECONDS = 10.0


def remote_session(conf: Mapping[str, str]) -> SparkSession:
    """A session of the server at `conf["spark.remote"]` (`sc://host:port/;parameters`), with our settings and those of `conf`.

    Raises CQError where the client is not installed, nobody answers, or the server refuses a setting of `conf`.
    """
    url = conf[REMOTE]
    _check_somebody_listens(url)
    try:
        import grpc  # type: ignore[import-untyped,unused-ignore]  # noqa: F401 - what PySpark's client needs

        # PySpark would write its errors to the terminal, as JSON with the server's stack.
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
        session = SparkSession.builder.remote(url).create()
        for name, value in SQL_SETTINGS.items():
            with suppress(PySparkException):  # of an older server
                session.conf.set(name, value)
    except ImportError as error:
        raise CQError(
            "Spark Connect needs packages that are not installed",
            detail=str(error),
            hint="pip install 'cq-engine[connect]'",
        ) from error
    except PySparkException as error:
        raise _refused(url, error) from error
    for name, value in conf.items():
        if name == REMOTE or session.conf.get(name, None) == value:
            continue
        if not session.conf.isModifiable(name):
            raise CQError(
                f"Spark setting {name} cannot become {value!r} at {url}",
                detail="it counts only when Spark starts, and that server runs already",
                hint="start the server with it, or leave it out",
            )
        session.conf.set(name, value)
    return session


def _check_somebody_listens(url: str) -> None:
    """Raises CQError where nobody does: PySpark's client would try for ten minutes."""
    place = urlsplit(url)
    try:
        host = place.hostname if place.scheme == "sc" else None
        socket.create_connection(
            (host or "not sc://host:port", place.port or _PORT), timeout=_SECONDS
        ).close()
    except (OSError, ValueError) as error:
        raise _refused(url, error) from error


def _refused(url: str, error: Exception) -> CQError:
    return CQError(
        f"no Spark Connect server answers at {url}",
        detail=str(error).splitlines()[0] if str(error) else type(error).__name__,
        hint="such a URL is sc://host:15002, and a server is started by start-connect-server.sh, which is in the pyspark package",
    )
