"""USING LOG over files that arrive: each is read once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError, SourceError, SourceUnavailableError
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.files.directory import Directory, Found, Stamp
from cq_engine.sources.files.fit import can_hold
from cq_engine.sources.files.readers import Block, Wanted, read
from cq_engine.sources.json_values import Unreadable
from cq_engine.sources.methods.base import Method, Place, check_key_filled
from cq_engine.sources.options import option
from cq_engine.sources.poison import DeadLetters, note, side_tables
from cq_engine.sources.tick import INSERT, UPSERT, Tick, with_operation

__all__ = ["ArrivingFiles", "check_table", "refused"]

_log = logging.getLogger(__name__)

_LETTERS = (("file", "STRING"), ("row", "BIGINT"), ("reason", "STRING"), ("text", "STRING"))


def check_table(declared: DeclaredSource, capture: Capture, table: Table, place: Place) -> None:
    """Raises AnalysisError where files cannot fill the table, SourceError where there is no directory of them."""
    check_key_filled(capture, table, "name a column of the files for it")
    filled = {each.target.lower() for each in capture.columns}
    for column in table.columns:
        if declared.type == "csv" and column.name.lower() in filled and not can_hold(column):
            raise AnalysisError(
                f"column {column.name} is {column.type}, which CSV does not have",
                hint="leave it out of the capture's columns, or take files of JSON or Parquet",
                location=place(column.name),
            )
    Directory(declared, capture.relation).files()


def refused(capture: Capture, name: str, row: int | None, reason: str) -> SourceError:
    """The error for a row of a file, or for the file."""
    return SourceError(
        f"file {name} has what capture {capture.name} cannot read",
        detail=reason if row is None else f"row {row}: {reason}",
        hint="mend the file and say ALTER CAPTURE ... RESUME"
        + (
            "; with on_poison = 'dead_letter' such rows are put aside" if capture.method.kind == "LOG" else ""
        ),
    )


class ArrivingFiles(Method):
    """Positions are the size and time of every file that was read and is still there, by its name; and of a file that is
    taken in parts the last row that was."""

    needs_key = False

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        check_table(declared, capture, table, place)
        if option(capture, "changed") == "again" and table.primary_key is None:
            raise AnalysisError(
                f"changed = 'again' needs a primary key of table {table.name}",
                detail="the rows of the file are there already, and are known again by it",
                hint="give the table a primary key",
                location=place("changed"),
            )
        return capture, note(capture)

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        del table
        return side_tables(capture, _LETTERS)

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        place = Directory(declared, tick.capture.relation)
        found = place.files()
        if tick.position is None and option(tick.capture, "initial") == "none":
            tick.move({"files": {each.name: each.stamp for each in found if place.is_settled(each)}})
            return
        if not found and tick.position:  # nobody knows whether they are gone, or the directory is not there
            tick.move(tick.position)
            return
        reading = _Reading(tick, place, found)
        try:
            for file in reading.due(found):
                reading.take(file)
        except SourceUnavailableError:
            raise
        except SourceError:
            reading.write()  # what came before it
            raise
        reading.write(whether_or_not=True)


class _Reading:
    """A tick: which files were read, and what of them is not written yet."""

    def __init__(self, tick: Tick, place: Directory, found: Sequence[Found]) -> None:
        self.tick = tick
        self.place = place
        position = tick.position or {}
        there = {each.name for each in found}
        self.read: dict[str, Stamp] = {n: s for n, s in position.get("files", {}).items() if n in there}
        self.part: tuple[str, Stamp, int] | None = tuple(position["part"]) if "part" in position else None
        self._wanted = Wanted.of(tick.capture, tick.columns, tick.key)
        self._operation = UPSERT if tick.key else INSERT
        self._letters = DeadLetters(tick.capture, _LETTERS)
        self._rows: list[pa.Table] = []
        self._count = 0
        self._files = 0
        self._wrote = False

    # ------------------------------------------------------------ which files

    def due(self, found: Sequence[Found]) -> list[Found]:
        """The files to be read, in order; what was begun comes first."""
        new = [each for each in found if self.place.is_settled(each) and self._is_new(each)]
        if self.part is None:
            return new
        name, stamp, _ = self.part
        begun = [each for each in new if (each.name, each.stamp) == (name, stamp)]
        if not begun:
            _log.warning("capture %s: file %s was read in part, and is not there any more", self._name, name)
            self.part = None
        return [*begun, *(each for each in new if each not in begun)]

    def _is_new(self, file: Found) -> bool:
        known = self.read.get(file.name)
        if known is None or known == file.stamp:
            return known is None
        changed = option(self.tick.capture, "changed")
        if changed == "ignore":
            self.read[file.name] = file.stamp
            return False
        if changed == "again" and self.tick.key:
            return True
        raise SourceError(
            f"file {file.name} has changed after capture {self._name} had read it",
            detail=f"it had {known[0]} bytes and has {file.size}"
            if known[0] != file.size
            else "it has been written to again",
            hint="files that arrive are written once; ALTER CAPTURE ... SET WITH (changed = 'again') reads it again by the"
            " table's key, changed = 'ignore' leaves it; then RESUME",
        )

    @property
    def _name(self) -> str:
        return self.tick.capture.name

    # ------------------------------------------------------------ one file

    def take(self, file: Found) -> None:
        """Reads a file whole, or not at all where it cannot be read or is being written."""
        after = self.part[2] if self.part and self.part[0] == file.name else 0
        blocks = read(self.place, self.tick.capture, file.name, self._wanted, after)
        own: list[Block] = []
        try:
            for block in blocks:
                own.append(block)
                if sum(each.rows.num_rows + len(each.bad) for each in own) > self._most:
                    self._take_large(file, chain(own, blocks))
                    return
        except Unreadable as reason:
            own = []
            self._refuse(file, None, str(reason), None)
        if not self.place.is_as_before(file):
            _log.info("capture %s: file %s is being written, and is left for later", self._name, file.name)
            return
        count = sum(each.rows.num_rows for each in own)
        if self._count + count > self._most:
            self.write()
        for block in own:
            self._refuse_all(file, block)
        self._rows += [block.rows for block in own]
        self._count += count
        self._done(file)

    @property
    def _most(self) -> int:
        return self.tick.services.limits.pending_rows

    def _done(self, file: Found) -> None:
        self.read[file.name] = file.stamp
        self._files += 1
        self.part = None

    def _refuse_all(self, file: Found, block: Block) -> None:
        for row, reason, text in block.bad:
            self._refuse(file, row, reason, text)

    def _refuse(self, file: Found, row: int | None, reason: str, text: str | None) -> None:
        letter = (file.name, row, reason, text)
        self._letters.refuse(letter, refused(self.tick.capture, file.name, row, reason))

    def _take_large(self, file: Found, blocks: Iterable[Block]) -> None:
        self.write()
        try:
            if self.tick.key:
                self._in_parts(file, blocks)
            else:
                self._load(file, blocks)
        except Unreadable as reason:
            self._letters.take()  # the file comes whole, or not; of one that comes in parts, these stay
            self._rows, self._count = [], 0
            self._refuse(file, None, str(reason), None)
            self._done(file)

    def _in_parts(self, file: Found, blocks: Iterable[Block]) -> None:
        """Upserts of a large file: several commits, of which each knows how far it was read."""
        for block in blocks:
            if self._count and self._count + block.rows.num_rows > self._most:
                self._check_whole(file)
                self.write()
            self._refuse_all(file, block)
            self._rows.append(block.rows)
            self._count += block.rows.num_rows
            self.part = (file.name, file.stamp, block.last)
        self._check_whole(file)
        self._done(file)

    def _load(self, file: Found, blocks: Iterable[Block]) -> None:
        """New rows of a large file: one commit, by Spark."""

        def batches() -> Iterator[pa.RecordBatch]:
            for block in blocks:
                self._refuse_all(file, block)
                yield from block.rows.to_batches()

        def position() -> Mapping[str, Any]:
            self._check_whole(file)
            return {"files": {**self.read, file.name: file.stamp}}

        self.tick.load(batches(), position, beside=self._letters.take)
        self._done(file)
        self._files, self._wrote = 0, True

    def _check_whole(self, file: Found) -> None:
        if not self.place.is_as_before(file):
            raise SourceUnavailableError(
                f"file {file.name} is written to while it is read",
                hint="a longer `settled` of the source leaves files alone until they are complete",
            )

    # ------------------------------------------------------------ writing

    def write(self, *, whether_or_not: bool = False) -> None:
        """Commits what was read, with the position after it; where there is nothing, notes the position at least where
        `whether_or_not`."""
        pending = self._files or self._rows or len(self._letters)
        if not pending and (self._wrote or not whether_or_not):
            return
        self._wrote = True
        rows = [with_operation(each, self._operation) for each in self._rows]
        given = {self.tick.table.name: pa.concat_tables(rows)} if rows else {}
        letters = self._letters.take()
        self.tick.count(self._count + sum(each.num_rows for each in letters.values()))
        position: dict[str, Any] = {"files": dict(self.read)}
        if self.part is not None:
            position["part"] = list(self.part)
        self.tick.apply({**given, **letters}, position)
        self._rows, self._count, self._files = [], 0, 0
