"""A directory of JSON-line files, or one file, of envelopes: read from where it was read before, whole lines only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cq_engine.catalog.model import Capture, DeclaredSource
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.sources.paths import path_of
from cq_engine.sources.records.record import Record, Records

__all__ = ["EnvelopeFiles"]


class EnvelopeFiles(Records):
    """The files of a source."""

    def __init__(self, declared: DeclaredSource) -> None:
        self._declared = declared

    def check(self) -> None:
        self._files()

    def reached(self, position: Mapping[str, Any]) -> dict[str, int]:
        if "files" not in position:
            raise SourceError(
                f"source {self._declared.name} was a topic when it was read before",
                hint="create the capture anew",
            )
        return dict(position["files"])

    def position(self, reached: Mapping[str, int]) -> dict[str, Any]:
        return {"files": dict(reached)}

    def ends(self) -> dict[str, int]:
        return {line.place: line.end for line in self.read({})}

    def shown(self, record: Record) -> str:
        return record.place

    def refused(self, capture: Capture, record: Record, reason: str) -> SourceError:
        return SourceError(
            f"a line of {record.place} is no envelope for capture {capture.name}",
            detail=f"at byte {record.start}: {reason}",
            hint="mend the file and say ALTER CAPTURE ... RESUME; with on_poison = 'dead_letter' such lines are put aside",
        )

    def read(self, reached: Mapping[str, int]) -> Iterator[Record]:
        """The lines after what was read of each file, in the order of the files' names. One that does not end yet is left
        for later.

        Raises SourceError for a file that is shorter than what was read of it.
        """
        directory, names = self._files()
        for name in names:
            start = reached.get(name, 0)
            try:
                with (directory / name).open("rb") as file:
                    if file.seek(0, 2) < start:
                        raise SourceError(
                            f"file {name} is shorter than what was read of it",
                            detail=f"{start} bytes of it were read before",
                            hint="new lines belong to the end of a file, or into a new one",
                        )
                    file.seek(start)
                    for text in file:
                        if not text.endswith(b"\n"):
                            break
                        yield Record(name, start, start + len(text), text)
                        start += len(text)
            except OSError as error:
                raise SourceUnavailableError(
                    f"file {name} cannot be read", detail=error.strerror or ""
                ) from error

    def _files(self) -> tuple[Path, list[str]]:
        path = Path(path_of(self._declared)).expanduser()
        try:
            if path.is_file():
                return path.parent, [path.name]
            return path, sorted(
                each.name for each in path.iterdir() if each.is_file() and each.name[0] not in "._"
            )
        except OSError as error:
            raise SourceUnavailableError(
                f"source {self._declared.name} has no directory of files at {dict(self._declared.options)['path']}",
                detail=error.strerror or "",
                hint="the option path names a directory of JSON-line files, or one such file",
            ) from error
