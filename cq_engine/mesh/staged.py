"""Rows of the table that match a change in the window, kept until the changes that met them expire."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from cq_engine.storage.scratch import scratch_directory

__all__ = ["Staged", "scratch"]

_PREFIX = "cq-mesh-"


def scratch() -> Path:
    """The process's directory for rows that do not fit into a budget; it goes with the process. Raises OSError."""
    return scratch_directory(Path(tempfile.gettempdir()), _PREFIX)


class Staged:
    """Rows that several batches share. They are in memory, or in a file where `spill` has put them; the last batch that
    releases them removes both."""

    def __init__(self, rows: pa.Table, place: Callable[[], Path] = scratch) -> None:
        self._rows: pa.Table | None = rows
        self._place = place
        self._path: Path | None = None
        self._holders = 0
        self.count = int(rows.num_rows)
        self.nbytes = int(rows.nbytes)
        """What they take in memory; 0 where they are in a file."""

    def hold(self) -> Staged:
        """One more batch has met them."""
        self._holders += 1
        return self

    def release(self) -> None:
        """A batch needs them no more."""
        self._holders -= 1
        if self._holders <= 0:
            self._rows, self.nbytes = None, 0
            if self._path is not None:
                with suppress(OSError):
                    self._path.unlink()
                self._path = None

    def spill(self) -> None:
        """Writes them to a file. Raises OSError where there is no room for it."""
        if self._rows is None or self._path is not None:
            return
        path = self._place() / f"{secrets.token_hex(8)}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, self._rows.schema) as writer:
            writer.write_table(self._rows)
        self._path, self._rows, self.nbytes = path, None, 0

    def rows(self) -> pa.Table:
        """The rows; from a file they are mapped into memory."""
        if self._rows is not None:
            return self._rows
        assert self._path is not None, "rows that were released"
        return pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()
