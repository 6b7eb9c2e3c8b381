"""Makes the archive of Spark's classes (`cq_engine.launch.class_archive`): `cq prepare`, or `python -m cq_engine.launch.prepare`.

A process of its own starts a small Spark that notes which classes it loads, does a little of everything that a refresh
does in a warehouse of its own, and ends; then its Java writes the archive, under a temporary name. What is complete is
renamed. Two processes that try at once do not disturb each other: the second one leaves.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cq_engine.core import faults, private
from cq_engine.core.errors import CQError
from cq_engine.launch import class_archive
from cq_engine.launch.java import find_java

__all__ = ["make"]

_LIMIT_SECONDS = 240
_LEAST_BYTES = 1_000_000
_TRAIN = "--train"

_STATEMENTS = (
    "CREATE TABLE sale (id BIGINT PRIMARY KEY, region STRING, amount DECIMAL(10, 2), at TIMESTAMP)",
    "CREATE TABLE region (region STRING PRIMARY KEY, name STRING)",
    "INSERT INTO region SELECT concat('r', id), concat('Region ', id) FROM range(20)",
    "INSERT INTO sale SELECT id, concat('r', id % 20), id % 97, TIMESTAMP '2020-01-01 00:00:00' FROM range(120000)",
    (
        "CREATE CONTINUOUS QUERY totals COMPUTE COMPRESSED DELTA ON DEMAND AS "
        "SELECT s.region, r.name, count(*) AS n, sum(s.amount) AS total, max(s.at) AS latest "
        "FROM sale s JOIN region r ON s.region = r.region GROUP BY s.region, r.name HAVING count(*) > 0"
    ),
    (
        "CREATE CONTINUOUS QUERY places COMPUTE TRANSACTIONAL DELTA ON DEMAND AS "
        "SELECT id, region, rank() OVER (PARTITION BY region ORDER BY amount DESC, id) AS place FROM sale WHERE id < 500"
    ),
    (
        "CREATE CONTINUOUS QUERY unnamed COMPUTE TRANSACTIONAL DELTA ON DEMAND AS "
        "SELECT s.id, r.name FROM sale s LEFT JOIN region r ON s.region = r.region WHERE s.amount > 95"
    ),
    "INSERT INTO sale VALUES (1000001, 'r3', 96, TIMESTAMP '2020-01-02 00:00:00'), (1000002, 'r4', 6, NULL)",
    "UPDATE sale SET amount = amount + 1 WHERE id = 3",
    "DELETE FROM sale WHERE id = 4",
    "REFRESH CONTINUOUS QUERY totals",
    "REFRESH CONTINUOUS QUERY places",
    "REFRESH CONTINUOUS QUERY unnamed",
    "SELECT region, count(*) AS n FROM sale GROUP BY region ORDER BY n DESC LIMIT 3",
)


def make() -> Path:
    """Makes the archive for the Java and the Spark that sessions of this environment use; removes older ones.

    Returns:
        Where it is. If it was there already, nothing else happens.

    Raises:
        CQError: archives are switched off, the directory cannot be written, another process makes one now, or Java
            wrote none.
    """
    java = find_java()
    path = class_archive.archive_path(java)
    if path is None or os.name == "nt":
        raise CQError(
            "there is no place for the archive of Spark's classes",
            hint="unset CQ_CLASS_ARCHIVE, and let CQ_CACHE_DIR name a directory",
        )
    try:
        private.make_directory(path.parent)
        with _alone(path.parent / "lock"):
            if not path.exists():
                class_archive.tried_path(path).touch()
                _train(path)
                class_archive.tried_path(path).unlink(missing_ok=True)
                class_archive.clean(path.parent, path)
    except OSError as error:
        raise CQError(
            f"cannot write the archive {path}",
            detail=error.strerror or str(error),
            hint="let CQ_CACHE_DIR name a directory that can be written",
        ) from error
    return path


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Runs the block if no other process does; the system takes the lock from a process that dies."""
    import fcntl

    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CQError("another process makes the archive of Spark's classes now") from error
        yield


def _train(path: Path) -> None:
    """Writes the archive under a temporary name and renames it."""
    temporary = path.with_name(f"{path.stem}-{os.getpid()}.tmp")
    # The kind of archive follows the name's end.
    options = [o.replace(str(path), str(temporary)) for o in class_archive.making_options(path)]
    try:
        # The pipe ends when all have ended: Python, its Java, and the one that Java 25 starts to write the cache.
        output = _run_limited([sys.executable, "-m", "cq_engine.launch.prepare", _TRAIN, shlex.join(options)])
        if not temporary.exists() or temporary.stat().st_size < _LEAST_BYTES:
            raise CQError("Java wrote no archive of Spark's classes", detail=output.strip()[-500:])
        faults.point("archive.written", temporary)
        temporary.replace(path)
    finally:
        for left in path.parent.glob(f"{temporary.name}*"):
            left.unlink(missing_ok=True)


def _run_limited(command: list[str]) -> str:
    """Runs a command in a process group of its own, which does not outlive the limit; what it printed."""
    environ = {**os.environ, "CQ_CLASS_ARCHIVE": "off"}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environ,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=_LIMIT_SECONDS)[0]
        except subprocess.TimeoutExpired:
            return "it took too long"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def _work(options: str) -> None:
    """What the small Spark does; the classes that this loads are those of the archive."""
    import cq_engine
    from cq_engine.launch.session import warm

    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": options,
    }
    with (
        tempfile.TemporaryDirectory(prefix="cq-engine-") as directory,
        cq_engine.connect(Path(directory) / "warehouse", conf=conf, scheduler=False) as engine,
    ):
        warm(engine.spark)
        for statement in _STATEMENTS:
            engine.execute(statement).fetchall()


def _main(arguments: list[str]) -> int:
    os.nice(19)
    if arguments[:1] == [_TRAIN]:
        _work(arguments[1])
        return 0
    try:
        make()
    except CQError:
        return 1  # nobody looks; the next day tries again
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
