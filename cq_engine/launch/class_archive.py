"""The archive of Spark's classes, which spares Java most of the loading when Spark starts.

A Java that starts Spark reads, checks and links thousands of classes. Java can store them in a file that later
starts map into memory: a dynamic CDS archive (`-XX:SharedArchiveFile`, JEP 350), or from Java 25 on an AOT cache
(`-XX:AOTCache`, JEPs 483, 514, 515). The file fits one build of Java and one Spark, which its name says; Java checks that
again, and goes on without the file where it does not fit.

Archives are in `classes/` of the cache directory: CQ_CACHE_DIR, else `cq-engine` in the user's directory for caches.
`cq_engine.launch.prepare` makes them. CQ_CLASS_ARCHIVE=off: none is used, and none made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from cq_engine.core import private
from cq_engine.core.user_cache import cache_directory
from cq_engine.launch.java import Java

__all__ = [
    "archive_path",
    "clean",
    "is_enabled",
    "make_later",
    "making_options",
    "using_options",
]

_AOT_MAJOR = 25
"""From this Java on one run writes an AOT cache; 24 needs several."""

_KEPT = 2
"""Archives that stay: this Spark's, and that of one other environment."""

_RETRY_SECONDS = 86_400
_STALE_SECONDS = 3_600
_OURS = re.compile(r"spark-.*\.(jsa|aot|tried|tmp|config)$")
_CONFLICTS = re.compile(
    r"-Xshare|-Xlog|SharedArchive|ArchiveClasses|SharedClassList|DumpSharedSpaces|AOT|-javaagent"
)


def is_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """False where CQ_CLASS_ARCHIVE says off."""
    environ = os.environ if environ is None else environ
    return environ.get("CQ_CLASS_ARCHIVE", "").strip().lower() not in {"off", "0", "no", "false"}


def archive_path(java: Java, environ: Mapping[str, str] | None = None) -> Path | None:
    """Where the archive for this Java and this process's Spark is, or would be; None where there can be none.

    The name has the versions of both, and a digest of Java's path and build and of Spark's place and jars.
    """
    import pyspark

    environ = os.environ if environ is None else environ
    directory = cache_directory(environ)
    if directory is None or not is_enabled(environ):
        return None
    home = Path(environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    try:
        changed = (home / "jars").stat().st_mtime_ns
    except OSError:
        return None
    parts = (java.executable.resolve(), java.build, pyspark.__version__, home.resolve(), changed)
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    suffix = "aot" if java.major >= _AOT_MAJOR else "jsa"
    return directory / "classes" / f"spark-{pyspark.__version__}-java-{java.major}-{digest}.{suffix}"


def using_options(path: Path | None, *given: str | None) -> list[str]:
    """Java's options for a start with the archive; none where it is not there yet.

    Args:
        path: what `archive_path` gave.
        given: options that others have given Java. Where they speak of archives, ours stay out: the two may exclude
            each other, and Java would not start.
    """
    if path is None or any(_CONFLICTS.search(options or "") for options in given):
        return []
    if not set(str(path)).isdisjoint('"\\\n'):  # these cannot stand in Spark's option strings
        return []
    try:
        if not path.stat().st_size:
            return []
    except OSError:
        return []
    # An archive that does not fit, or is damaged, is passed over. Java would say so on the terminal.
    if path.suffix == ".aot":
        return [f"-XX:AOTCache={path}", "-XX:AOTMode=auto", "-Xlog:disable"]
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:disable"]


def making_options(path: Path) -> list[str]:
    """Java's options to write the archive `path` when it ends."""
    kind = "AOTCacheOutput" if path.suffix == ".aot" else "ArchiveClassesAtExit"
    return [f"-XX:{kind}={path}", "-Xlog:disable"]


def clean(directory: Path, keep: Path) -> None:
    """Removes what is left of earlier versions: all archives but `keep` and the newest other, and old temporary files.

    Other files are not touched. What cannot be removed stays.
    """
    now = time.time()
    others: list[tuple[float, Path]] = []
    for path in directory.iterdir():
        if path == keep or not _OURS.match(path.name):
            continue
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime
            if path.suffix in {".jsa", ".aot"}:
                others.append((changed, path))
            elif now - changed > (_RETRY_SECONDS if path.suffix == ".tried" else _STALE_SECONDS):
                path.unlink()
    for _, path in sorted(others, reverse=True)[_KEPT - 1 :]:
        with contextlib.suppress(OSError):
            path.unlink()


def tried_path(path: Path) -> Path:
    """The file that says when the archive was last tried."""
    return path.with_suffix(".tried")


def make_later(path: Path | None, environ: Mapping[str, str] | None = None) -> bool:
    """Starts a process of low priority that makes the archive, and outlives this one; for minutes at most.

    Only where a person sits at a terminal (stdin and stderr), not in continuous integration, where it was not tried in
    the last day, and where the directory can be written.

    Returns:
        True if it was started.
    """
    environ = os.environ if environ is None else environ
    if path is None or os.name == "nt" or environ.get("CI") or not is_enabled(environ) or path.exists():
        return False
    if not _at_terminal():
        return False
    try:
        private.make_directory(path.parent)
        tried = tried_path(path)
        if tried.exists() and time.time() - tried.stat().st_mtime < _RETRY_SECONDS:
            return False
        if not os.access(path.parent, os.W_OK):
            return False
        subprocess.Popen(
            [sys.executable, "-m", "cq_engine.launch.prepare"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError:
        return False
    return True


def _at_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
