"""A directory of JSON-line files, or one file, of envelopes: read from where it was read before, whole lines only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cq_engine.catalog.model import DeclaredSource
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.destinations.options import Option
from cq_engine.sources.paths import path_of, path_option

__all__ = ["OPTIONS", "Line", "check", "lines"]


OPTIONS: Mapping[str, Option] = {
    "path": path_option("write the directory of JSON-line files, as in path = '/data/debezium/shop'")
}


@dataclass(frozen=True)
class Line:
    """A line of a file, and where the next one begins."""

    file: str
    start: int
    end: int
    text: bytes


def _files(declared: DeclaredSource) -> tuple[Path, list[str]]:
    path = Path(path_of(declared)).expanduser()
    try:
        if path.is_file():
            return path.parent, [path.name]
        return path, sorted(
            each.name for each in path.iterdir() if each.is_file() and each.name[0] not in "._"
        )
    except OSError as error:
        raise SourceUnavailableError(
            f"source {declared.name} has no directory of files at {path}",
            detail=str(error),
            hint="the option path names a directory of JSON-line files, or one such file",
        ) from error


def check(declared: DeclaredSource) -> None:
    """Raises SourceError where there is nothing to be read."""
    _files(declared)


def lines(declared: DeclaredSource, read: Mapping[str, int]) -> Iterator[Line]:
    """The lines after what was `read` of each file, in the order of the files' names. One that does not end yet is left
    for later.

    Raises SourceError for a file that is shorter than what was read of it.
    """
    directory, names = _files(declared)
    for name in names:
        start = read.get(name, 0)
        try:
            with (directory / name).open("rb") as file:
                if file.seek(0, 2) < start:
                    raise SourceError(
                        f"file {directory / name} is shorter than what was read of it",
                        detail=f"{start} bytes of it were read before",
                        hint="new lines belong to the end of a file, or into a new one",
                    )
                file.seek(start)
                for text in file:
                    if not text.endswith(b"\n"):
                        break
                    yield Line(name, start, start + len(text), text)
                    start += len(text)
        except OSError as error:
            raise SourceUnavailableError(
                f"file {directory / name} cannot be read", detail=str(error)
            ) from error
