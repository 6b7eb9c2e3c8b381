"""Destinations of type jsonl: every delta is a line of a file, at least once and in order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

from cq_engine import DeltaBatch, DestinationError
from cq_engine.destinations import Option, Sink


def absolute(value: str) -> None:
    """Raises ValueError: a relative path would mean another file in every process."""
    if not Path(value).is_absolute():
        raise ValueError


class JsonLines(Sink):
    """Appends to the file `path`. A line has query, version, sequence, marker, key, old and new."""

    OPTIONS: ClassVar = {
        "path": Option(None, absolute, "write an absolute path, as in path = '/data/deltas.jsonl'"),
    }

    def check(self) -> None:
        folder = Path(self.options["path"]).parent
        if not folder.is_dir():
            raise DestinationError(f"there is no directory {folder}", hint="make it first")

    def open(self) -> None:
        self.file = os.open(self.options["path"], os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, batch: DeltaBatch) -> None:
        lines = [
            {
                "query": batch.query,
                "version": delta.commit_version,
                "sequence": delta.sequence,
                "marker": delta.marker,
                "key": delta.key,
                "old": None if delta.old is None else dict(zip(batch.columns, delta.old)),
                "new": None if delta.new is None else dict(zip(batch.columns, delta.new)),
            }
            for delta in batch
        ]
        content = "".join(json.dumps(line, default=str) + "\n" for line in lines).encode()
        size = os.lseek(self.file, 0, os.SEEK_END)
        if size and os.pread(self.file, 1, size - 1) != b"\n":
            content = b"\n" + content  # a process has died in the middle of a line, which comes again
        while content:
            content = content[os.write(self.file, content) :]
        os.fsync(self.file)  # it counts as received when this returns

    def close(self) -> None:
        os.close(self.file)
