"""The examples of a checkout: what `cq example` lists and runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cq_engine.core.errors import CQError

__all__ = ["find", "first_line", "listing", "run_program"]

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, where this is one."""


def listing() -> list[str]:
    """A line for each example, as far as the terminal is wide. Raises CQError where there are none."""
    files = _files()
    width = max(len(path.name) for path in files)
    return [_fit(f"  {path.name:<{width}}  {first_line(path)}".rstrip()) for path in files]


def find(name: str) -> Path:
    """The example with this number, name or file name. Raises CQError where none has, or several have."""

    def matches(path: Path) -> bool:
        number, _, rest = path.stem.partition("_")
        same_number = name.isdecimal() and number.isdecimal() and int(name) == int(number)
        return same_number or name in {path.name, path.stem, rest}

    found = [path for path in _files() if matches(path)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CQError(f"there is no example {name}", hint="cq example lists them")
    raise CQError(f"several examples are called {name}", detail=", ".join(path.name for path in found))


def first_line(path: Path) -> str:
    """What an example says of itself: the first line of its docstring or of its comment."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip().lstrip("-#\"' ").rstrip("\"' ")
        if text and not line.startswith("#!"):
            return text
    return ""


def run_program(path: Path, arguments: Sequence[str]) -> int:
    """Runs an example that is a Python program; its exit code."""
    command = [sys.executable, str(path), *arguments]
    with subprocess.Popen(command) as process:  # noqa: S603 - our own examples, without a shell
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # the example has got it, too, and ends in its own way


def _files() -> list[Path]:
    directory = ROOT / "examples"
    files = (path for path in directory.glob("[0-9]*_*") if path.suffix in {".cql", ".py"})
    found = sorted(files, key=lambda path: path.name) if (ROOT / "pyproject.toml").is_file() else []
    if not found:
        raise CQError(
            "there are no examples here",
            detail=f"they are part of a source checkout, and {directory} has none",
            hint="clone the repository and install it with pip install -e .",
        )
    return found


def _fit(line: str) -> str:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(line)
    return line if len(line) <= width else line[: width - 1] + "…"
