"""The local Spark session that cq-engine starts where the caller brings none.

Tuned for many small refreshes in one process, and quiet: no web page, no progress bars, no log on the terminal,
nothing left in the working directory. The environment variable CQ_SPARK_LOG names a file for Spark's warnings.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from cq_engine.core.errors import CQError
from cq_engine.launch import class_archive
from cq_engine.launch.java import Java, has_launched, launch_environment

__all__ = [
    "interrupt",
    "missing_archive",
    "prestart",
    "spark_session",
    "warm",
]

SQL_SETTINGS: Mapping[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # 1 to 8 cost a small refresh the same, Spark's 200 twice as much; bulk work wants every core busy.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Delta readers do not know INT96, and Spark's own default is INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # List files in the driver: a Spark job for it costs more than listing a few thousand local files.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Many small files share a task instead of being padded to 4 MB each.
    "spark.sql.files.openCostInBytes": "65536",
    # Key lists of up to 1 000 literals reach Parquet's row-group filter.
    "spark.sql.parquet.pushdown.inFilterThreshold": "1000",
    # Spark writes every plan as text for its web page, which is off; the default text has each operator in detail.
    "spark.sql.ui.explainMode": "simple",
    # TIME is behind a switch.
    "spark.sql.timeType.enabled": "true",
    # The driver reads variants from Parquet as their two binary parts, as Delta readers without VARIANT do.
    "spark.sql.variant.writeShredding.enabled": "false",
}
"""What every session of ours has; each can be changed while Spark runs."""

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
    prestart_conf: Mapping[str, str] = field(default_factory=dict)
    archive: Path | None = None
    """The archive of classes that the start would have used, had it been there."""


_started = _Started()


def spark_session(conf: Mapping[str, str] | None = None) -> SparkSession:
    """A tuned session: in a local Spark started now, or a new session in the Spark that this process runs already.

    Where Spark runs already, the settings of its other sessions are left alone.

    Args:
        conf: Spark settings, which win over ours. `spark.master` decides where Spark runs (default `local[*]`).

    Returns:
        The session. The caller stops it; the process's end stops it, too.

    Raises:
        CQError: no usable Java was found, or `conf` asks a running Spark for a setting that only a start can change.
    """
    conf = {} if conf is None else dict(conf)
    with _starting:
        running = _running()
        prestarted, _started.prestarted = _started.prestarted, None
        if (
            prestarted is not None
            and running is not None
            and prestarted.sparkContext is running.sparkContext  # and has not been stopped since
            and conf == _started.prestart_conf
        ):
            return prestarted
        return _start(conf) if running is None else _sibling(running, conf)


def prestart(conf: Mapping[str, str]) -> None:
    """Starts the Spark that the next `spark_session(conf)` gives, which waits for it; called in a thread of its own.

    So Java starts while the rest of the program is being imported. What goes wrong here goes wrong again in
    `spark_session`, which raises it.
    """
    with _starting:
        if _running() is None:
            with contextlib.suppress(Exception):
                _started.prestart_conf = dict(conf)
                _started.prestarted = _start(conf)


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
    return session


def _start(conf: Mapping[str, str]) -> SparkSession:
    directory = Path(tempfile.mkdtemp(prefix="cq-engine-"))
    atexit.register(_remove, directory)
    # Otherwise PySpark prints the JVM's stack, as JSON, before it raises an error of a DataFrame.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    with launch_environment(directory) as java:
        own = _start_settings(directory, conf.get("spark.master", "local[*]"))
        own["spark.driver.defaultJavaOptions"] += _archive_options(java, conf)
        _started.launching = True
        try:
            return SparkSession.builder.config(map={**own, **SQL_SETTINGS, **conf}).getOrCreate()
        finally:
            _started.launching = False


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
    for key, value in {**SQL_SETTINGS, **conf}.items():
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
    }
    if master.startswith("local"):
        # The loopback address works without a network, and where the host's own name does not resolve.
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "localhost"}
    return settings


def interrupt(spark: SparkSession) -> None:
    """Cancels the work of the session that other threads wait for."""
    if hasattr(spark, "sparkContext"):
        spark.sparkContext.cancelAllJobs()
    else:
        spark.interruptAll()


def _driver_memory_mib() -> int:
    """40 % of the memory that this process may use, between 1 and 8 GiB."""
    share = int(_memory_bytes() * _MEMORY_SHARE) // 2**20
    return max(_MEMORY_LEAST_MIB, min(share, _MEMORY_LIMIT_MIB))


def _memory_bytes() -> int:
    """The machine's memory, or the control group's limit where that is less (containers)."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not POSIX
        return 4 * 2**30
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            total = min(total, int(limit.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no control groups, or no limit ("max")
            continue
    return total
