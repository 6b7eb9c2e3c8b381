"""The Spark session of an engine: the one that it was given, or one that starts when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyspark.sql import SparkSession

from cq_engine.core.errors import CQError
from cq_engine.spark.jobs import LOST, cancel_all, has_ended, stop_jobs, tag_jobs

__all__ = ["LazySession"]


class LazySession:
    """A Spark session that starts at its first use, and again where its JVM has ended. One that was given is only
    used: nothing here stops or replaces it.

    Args:
        given: the session of whoever opened the warehouse.
        conf: settings for the session that is started otherwise, as they are when it is; only `spark.*` count.
    """

    def __init__(self, given: SparkSession | None, conf: Mapping[str, str]) -> None:
        self.started = given
        """The session, once there is one."""
        self._given = given is not None
        self._conf = conf
        self._starting = threading.Lock()

    def get(self) -> SparkSession:
        """The session, for jobs of this thread's call.

        Raises CQError where it cannot be started, or was given and has ended; Interrupted where the call is cancelled.
        """
        session = self._start()
        try:
            tag_jobs(session)
        except LOST:
            self.forget_ended()
            session = self._start()
            tag_jobs(session)
        return session

    def forget_ended(self) -> None:
        """Has the next use start another Spark where this one has ended. Raises CQError where it was given."""
        session = self.started
        if session is None or not has_ended(session):
            return
        if self._given:
            raise CQError(
                "the Spark session has ended",
                hint="start another one, and give that to connect(..., spark=...)",
            )
        with self._starting:
            if self.started is session:
                self.started = None

    def stop_calls(self) -> None:
        """Cancels the calls of other threads that use the session's Spark."""
        if self.started is not None:
            stop_jobs(self.started)

    def stop_everything(self) -> None:
        """Cancels all jobs, unless the session was given: then there may be jobs of others."""
        if self.started is not None and not self._given:
            cancel_all(self.started)

    def _start(self) -> SparkSession:
        with self._starting:
            if self.started is None:
                from cq_engine.launch.session import spark_session

                self.started = spark_session({k: v for k, v in self._conf.items() if k.startswith("spark.")})
            return self.started
