"""Rows of the table that match a change in the window, kept until the changes that met them expire."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa

from cq_engine.storage.scratch import scratch_directory

__all__ = ["Stage", "Staged", "gather", "scratch", "spill"]

_PREFIX = "cq-mesh-"


def scratch() -> Path:
    """The process's directory for rows that do not fit into a budget; it goes with the process. Raises OSError."""
    return scratch_directory(Path(tempfile.gettempdir()), _PREFIX)


class _File:
    """A file of rows of several `Staged`, which goes with the last of them."""

    def __init__(self, path: Path, users: int) -> None:
        self.path = path
        self.users = users

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            with suppress(OSError):
                self.path.unlink()


class Staged:
    """Rows of a page that several batches share. They are in memory, or in a file where `spill` has put them; they are gone when
    the last batch has released them."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows: pa.Table | None = rows
        self._file: _File | None = None
        self._place = 0
        self._holders = 0
        self._stage: Stage | None = None
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
            self._leave_memory()
            if self._file is not None:
                self._file.release()
                self._file = None

    def drop_unmet(self) -> None:
        """Nobody will meet them: they are gone, unless a batch has met them already."""
        self.hold().release()

    def rows(self) -> pa.Table:
        """The rows; from a file they are mapped into memory."""
        return gather([self])[0]

    def move(self, file: _File, place: int) -> None:
        """They are in a file now, as its record batch number `place`."""
        self._file, self._place = file, place  # first: somebody may be reading them
        self._leave_memory()

    def enter(self, stage: Stage) -> None:
        """Has what they take counted there, as long as they are in memory."""
        self._stage = stage

    def _leave_memory(self) -> None:
        if self._stage is not None:
            self._stage.forget(self)
        self._rows, self.nbytes, self._stage = None, 0, None


class Stage:
    """The rows in memory that wait for their batches, of however many pages; what they take is known without asking each."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._parts: dict[Staged, None] = {}

    def add(self, part: Staged) -> None:
        """Counts rows that were found, unless they are in a file."""
        if part.nbytes and part not in self._parts:
            part.enter(self)
            self._parts[part] = None
            self.nbytes += part.nbytes

    def forget(self, part: Staged) -> None:
        """They are not in memory any more."""
        if part in self._parts:
            del self._parts[part]
            self.nbytes = self.nbytes - part.nbytes if self._parts else 0

    def spill(self) -> int:
        """Puts all of them into a file; how many bytes they took. Raises OSError where there is no room for it."""
        return spill(list(self._parts))


def gather(parts: Sequence[Staged]) -> list[pa.Table]:
    """The rows of each, from files mapped into memory. What was found one after the other is in the same files, each of which is opened
    once for parts in a row."""
    found: list[pa.Table] = []
    with ExitStack() as held:
        opened: tuple[_File, pa.RecordBatchFileReader] | None = None
        for part in parts:
            rows, file = part._rows, part._file  # noqa: SLF001 - of this module
            if rows is None:
                assert file is not None, "rows that were released"
                if opened is None or opened[0] is not file:
                    held.close()
                    opened = file, pa.ipc.open_file(held.enter_context(pa.memory_map(str(file.path))))
                batch = opened[1].get_batch(part._place)  # noqa: SLF001
                rows = pa.Table.from_batches([batch], opened[1].schema)
            found.append(rows)
    return found


def spill(parts: Sequence[Staged]) -> int:
    """Writes rows in memory, of the same columns, to a file; how many bytes they took. Raises OSError where there is no room for it."""
    there = [part for part in parts if part.nbytes and part.count]
    done = 0
    while there:
        schema = there[0].rows().schema
        same = [part for part in there if part.rows().schema.equals(schema)]
        there = [part for part in there if not part.rows().schema.equals(schema)]
        path = scratch() / f"{secrets.token_hex(8)}.arrow"
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for part in same:
                    writer.write_batch(part.rows().combine_chunks().to_batches()[0])
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        file = _File(path, len(same))
        for place, part in enumerate(same):
            done += part.nbytes
            part.move(file, place)
    return done
