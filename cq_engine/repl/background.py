"""Things that happen while a person types: the engine opens, Spark starts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future

from cq_engine.repl.ports import EngineLike

__all__ = ["POLL_SECONDS", "Opening"]

POLL_SECONDS = 0.2


class Opening:
    """An engine that is being opened in the background, and Spark beside it.

    Args:
        connect: opens the engine.
        start_spark: asks the engine for its Spark as soon as it is open.
        prestart: begins to start that Spark, in a thread of its own, while the engine's modules are being imported.
        hold: does nothing before `begin` or the first question for the engine: imports would delay the prompt.
    """

    def __init__(
        self,
        connect: Callable[[], EngineLike],
        *,
        start_spark: bool = False,
        prestart: Callable[[], None] | None = None,
        hold: bool = False,
    ) -> None:
        self._connect = connect
        self._start_spark = start_spark
        self._prestart = prestart
        self._opened: Future[EngineLike] = Future()
        self._spark_tried = threading.Event()
        self._beginning = threading.Lock()
        self._begun = False
        if not hold:
            self.begin()

    def begin(self) -> None:
        """Begins to open the engine, unless that has begun."""
        with self._beginning:
            if self._begun:
                return
            self._begun = True
        if self._prestart is not None:
            threading.Thread(target=self._prestart, name="cq-spark-prestart", daemon=True).start()
        threading.Thread(target=self._open, name="cq-open", daemon=True).start()

    def engine(self) -> EngineLike:
        """The engine, as soon as it is open.

        Raises:
            CQError: the warehouse cannot be opened; other exceptions of `connect` come as they are.
        """
        self.begin()
        return self._opened.result()

    @property
    def current(self) -> EngineLike | None:
        """The engine if it is open by now."""
        if self._opened.done() and self._opened.exception() is None:
            return self._opened.result()
        return None

    @property
    def error(self) -> BaseException | None:
        """Why opening failed, if it has."""
        return self._opened.exception() if self._opened.done() else None

    @property
    def under_way(self) -> str:
        """What a statement may have to wait for at the moment, in words; empty where there is nothing."""
        if not self._opened.done():
            return "the warehouse is being opened"
        return "Spark is starting" if self._start_spark and not self._spark_tried.is_set() else ""

    def when_failed(self, tell: Callable[[], None]) -> None:
        """Calls `tell`, in another thread, if opening fails; at once if it has failed."""
        self._opened.add_done_callback(lambda opened: tell() if opened.exception() is not None else None)

    def close(self) -> None:
        """Closes the engine if it opened, or as soon as it has."""
        with self._beginning:
            if not self._begun:
                return
        if self._opened.exception() is None:
            self._opened.result().close()

    def _open(self) -> None:
        try:
            engine = self._connect()
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the engine
            self._opened.set_exception(error)
            return
        self._opened.set_result(engine)
        if self._start_spark:
            # The first statement that needs Spark meets the same error and shows it.
            with contextlib.suppress(Exception):
                _ = engine.spark
        self._spark_tried.set()
