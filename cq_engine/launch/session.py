"""The local Spark session that cq-engine starts where the caller brings none.

Tuned for many small refreshes in one process, and quiet: no web page, no progress bars, no log on the terminal,
nothing left in the working directory. The environment variable CQ_SPARK_LOG names a file for Spark's warnings.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from cq_engine.core.calls import one_call
from cq_engine.core.errors import CQError
from cq_engine.core.memory import memory_bytes
from cq_engine.launch import class_archive
from cq_engine.launch.java import Java, has_launched, launch_environment
from cq_engine.launch.remote import REMOTE, remote_session
from cq_engine.launch.settings import settings_for
from cq_engine.spark.jobs import LOST, has_ended

__all__ = [
    "missing_archive",
    "prestart",
    "spark_session",
    "warm",
]

_COMPILER = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Java's optimising compiler starts ten times later than by default: small refreshes and a young session spend more on
it than it saves them. The loops of bulk work reach these numbers at once."""
_MEMORY_SHARE = 0.4
_MEMORY_LIMIT_MIB = 8192
_MEMORY_LEAST_MIB = 1024
_LAUNCH_SECONDS = 5.0

_starting = threading.Lock()


@dataclass
class _Started:
    """What is known of the Spark that this process has started."""

    prestarted: SparkSession | None = None
    """The session that `prestart` started, until somebody asks for it."""
    launching: bool = False
    """True while a Spark is being started."""
    start: Future[SparkSession] | None = None
    """The start that is under way."""
    prestart_conf: Mapping[str, str] = field(default_factory=dict)
    archive: Path | None = None
    """The archive of classes that the start would have used, had it been there."""


_started = _Started()


@one_call
def spark_session(conf: Mapping[str, str] | None = None) -> SparkSession:
    """A tuned session: in a local Spark started now, or a new session in the Spark that this process runs already.

    Where Spark runs already, the settings of its other sessions are left alone. Ctrl-C while it starts ends the waiting
    only; the next call gets what was started.

    Args:
        conf: Spark settings, which win over ours. `spark.master` decides where Spark runs (default `local[*]`);
            `spark.remote` names a server of Spark Connect instead.

    Returns:
        The session. The caller stops it; the process's end stops it, too.

    Raises:
        CQError: no usable Java was found, or `conf` asks a running Spark for a setting that only a start can change.
    """
    conf = {} if conf is None else dict(conf)
    if REMOTE in conf:
        return remote_session(conf)
    start: Future[SparkSession] | None = None
    while True:
        with _starting:
            running = _running()
            if running is not None:
                prestarted, _started.prestarted = _started.prestarted, None
                if (
                    prestarted is not None
                    and prestarted.sparkContext is running.sparkContext  # and has not been stopped since
                    and conf == _started.prestart_conf
                ):
                    if start is not None:
                        # So PySpark makes it this thread's active session, in which some functions look for settings.
                        prestarted.createDataFrame([], "n INT")
                    return prestarted
                return _sibling(running, conf)
            start = _begin_start(conf)
        start.result()


def prestart(conf: Mapping[str, str]) -> None:
    """Starts the Spark that the next `spark_session(conf)` gives, which waits for it; for a thread of its own.

    So Java starts while the rest of the program is being imported. What goes wrong here goes wrong again in
    `spark_session`, which raises it.
    """
    with _starting:
        start = _begin_start(dict(conf)) if _running() is None else None
    with contextlib.suppress(Exception):
        if start is not None:
            start.result()


def _begin_start(conf: Mapping[str, str]) -> Future[SparkSession]:
    """The start that is under way, else one with `conf`, with `_starting` held.

    It has a thread of its own, which Ctrl-C does not reach; in the main thread PySpark would also take Ctrl-C for
    itself, and cancel everybody's jobs.
    """
    if _started.start is not None:
        return _started.start
    start: Future[SparkSession] = Future()
    _started.start = start

    def run() -> None:
        session: SparkSession | None = None
        error: BaseException | None = None
        try:
            session = _start(conf)
        except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
            error = raised
        with _starting:
            _started.start = None
            _started.prestarted, _started.prestart_conf = session, conf
        if session is not None:
            start.set_result(session)
        else:
            start.set_exception(error)

    threading.Thread(target=run, name="cq-spark-start", daemon=True).start()
    return start


def missing_archive() -> Path | None:
    """The archive of classes that this process's Spark would have started with, had it been there."""
    return _started.archive


def warm(spark: SparkSession) -> None:
    """Runs one small query with the shapes of a refresh, so that the JVM has loaded their classes before the first."""
    import pyarrow as pa

    rows = pa.table({"key": pa.array([1, 2, 2], pa.int64()), "value": pa.array([1, 2, 3], pa.int64())})
    spark.sql(
        "SELECT d.key, count(*) AS n, sum(s.value) AS total FROM {delta} d JOIN {source} s ON d.key = s.key "
        "WHERE d.value > 0 GROUP BY d.key HAVING count(*) > 0",
        delta=spark.createDataFrame(rows),
        source=spark.createDataFrame(rows),
    ).toArrow()


def _running() -> SparkSession | None:
    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return None
    except LOST:
        _forget()
        return None
    if has_ended(session):
        _forget()
        return None
    return session


def _forget() -> None:
    """Lets a Spark go that was stopped or whose JVM has ended, so that another can be started.

    PySpark offers no way: `stop` wants to ask the JVM, and the gateway to it is kept for ever. So this, and nothing
    else in the engine, sets what is PySpark's own.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001
    for each in (context, context):  # the second time it does what comes after asking the JVM
        with warnings.catch_warnings(), contextlib.suppress(*LOST):
            warnings.simplefilter("ignore")
            if each is not None:
                each.stop()
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    try:
        if SparkContext._gateway is not None:  # noqa: SLF001
            SparkContext.getSystemProperty("java.version")
    except LOST:
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _start(conf: Mapping[str, str]) -> SparkSession:
    directory = Path(tempfile.mkdtemp(prefix="cq-engine-"))
    atexit.register(_remove, directory)
    # Otherwise PySpark prints the JVM's stack, as JSON, before it raises an error of a DataFrame.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    # And Py4J prints what it raises where a JVM ends or a conversation with it is cut off.
    logging.getLogger().addFilter(_is_not_py4j)
    with launch_environment(directory) as java:
        own = _start_settings(directory, conf.get("spark.master", "local[*]"))
        own["spark.driver.defaultJavaOptions"] += _archive_options(java, conf)
        _started.launching = True
        try:
            settings = settings_for(own["spark.master"])
            return SparkSession.builder.config(map={**own, **settings, **conf}).getOrCreate()
        finally:
            _started.launching = False


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _remove(directory: Path) -> None:
    """Removes a start's directory at the end of the process.

    Where the process ends while another thread starts Spark, it waits until the launcher has used the script in there:
    the launcher would complain on the terminal. The Java ends by itself.
    """
    end = time.monotonic() + _LAUNCH_SECONDS
    while _started.launching and os.name != "nt" and time.monotonic() < end:
        if has_launched(directory / "java"):
            break
        time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)


def _archive_options(java: Java, conf: Mapping[str, str]) -> str:
    """Java's options for the archive of Spark's classes, each in quotation marks after a space."""
    path = class_archive.archive_path(java)
    given = [conf.get("spark.driver.extraJavaOptions"), os.environ.get("JDK_JAVA_OPTIONS")]
    options = class_archive.using_options(path, *given, os.environ.get("JAVA_TOOL_OPTIONS"))
    _started.archive = None if options else path
    return "".join(f' "{option}"' for option in options)


def _sibling(running: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    session = running.newSession()
    settings = settings_for(running.conf.get("spark.master", None) or "local")
    for key, value in {**settings, **conf}.items():
        if session.conf.get(key, None) == value:
            continue
        if key in conf and not session.conf.isModifiable(key):
            raise CQError(
                f"Spark setting {key} cannot become {value!r} now",
                detail="this process runs Spark already, and the setting counts only when Spark starts",
                hint="stop the running Spark session first, or leave the setting out",
            )
        session.conf.set(key, value)
    return session


def _start_settings(directory: Path, master: str) -> dict[str, str]:
    """The settings that only a start can change."""
    log = os.environ.get("CQ_SPARK_LOG") or os.devnull
    properties = Path(__file__).with_name("log4j2.properties").as_uri()
    settings = {
        "spark.master": master,
        "spark.app.name": "cq-engine",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_driver_memory_mib()}m",
        # The *default* options come in addition to extraJavaOptions, which stay the caller's.
        "spark.driver.defaultJavaOptions": f'"-Dcq.spark.log={log}" -Dlog4j2.configurationFile={properties} {_COMPILER}',
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (directory / "spark-warehouse").as_uri(),
        "spark.sql.artifact.isolation.enabled": "false",
        # One statement of a refresh has up to a hundred generated classes; Spark keeps that many of all statements
        # together by default, and would compile them again in every refresh.
        "spark.sql.codegen.cache.maxEntries": "10000",
        # PySpark notes the caller's file and line with every column that is built, in half a dozen calls to the JVM each:
        # two thirds of the time of a statement by executors over a wide table.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if master.startswith("local"):
        # The loopback address works without a network, and where the host's own name does not resolve.
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "localhost"}
    return settings


def _driver_memory_mib() -> int:
    """40 % of the memory that this process may use, between 1 and 8 GiB."""
    share = int(memory_bytes() * _MEMORY_SHARE) // 2**20
    return max(_MEMORY_LEAST_MIB, min(share, _MEMORY_LIMIT_MIB))
