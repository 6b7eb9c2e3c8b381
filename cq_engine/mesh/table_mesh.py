"""MESHJOIN over one table: who waits for rows of it drives the scan that all of them share.

`rows` takes the keys of a refresh, cut into batches that fit into the window, and gives the rows of the table that have them after each batch has
met the whole table. No thread belongs to it: of the threads that wait, one reads the next pages and the others sleep, so
that the scan moves exactly while somebody waits, and stands where it stood when somebody comes again.

All that it holds is counted in bytes and kept within the budget, except what a refresh gets in the end:

- the page buffer, b pages at a time, at most a quarter or what the window leaves; a larger page is decoded in parts (matching.py);
- the keys of the batches in the window with their hash table H and queue Q, and which pages they have still to meet, at most five eighths, or eleven sixteenths where pages are decoded in parts; further
  batches wait outside;
- rows of the table that match, until the batches that met them expire: beyond an eighth they go to files, or a sixteenth where the window is
  full.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError
from cq_engine.core.types import arrow_type
from cq_engine.mesh.batches import Asked, ConditionBatch, KeyBatch, Matcher, Waiting
from cq_engine.mesh.cost import Factors, Model, Tuning
from cq_engine.mesh.counters import Counters
from cq_engine.mesh.hashed_keys import HashedKeys
from cq_engine.mesh.matching import Matching, fixed_width
from cq_engine.mesh.packed_keys import Keys, in_order, is_numeric, parts
from cq_engine.mesh.pages import Shapes, Source
from cq_engine.mesh.run import Run
from cq_engine.mesh.staged import Stage, Staged
from cq_engine.mesh.tuner import Tuner
from cq_engine.mesh.window import Image, Page, Window
from cq_engine.storage.file_look_ups import Restrict
from cq_engine.storage.rows import empty

__all__ = ["TableMesh"]

_WINDOW_PARTS = 4
"""Batches that the window holds at least: so often in a cycle changes can enter it."""
_PAGE_BYTES = 2
"""What a batch knows of a page, and its part of what the window knows of it."""


class TableMesh:
    """The mesh of one query with one table. Thread-safe."""

    def __init__(
        self,
        source: Source,
        memory: int,
        factors: Factors | None = None,
        read_on: Callable[[], None] = lambda: None,
    ) -> None:
        """`memory` is the budget in bytes; `read_on` is called after each read, in the thread that drives the scan."""
        self.counters = Counters()
        self._tuner = Tuner(memory, factors or Factors())
        self._source = source
        self._window: Window[Waiting] = Window()
        self._hashed: dict[Column, HashedKeys] = {}
        self._waiting: deque[Waiting] = deque()
        self._turn = threading.Condition()
        self._scanning = False
        self._stopped = False
        self._read_on = read_on
        self._matching = Matching(source, self._tuner, self.counters)
        self._stage = Stage()
        self._shapes = Shapes(source)

    # ------------------------------------------------------------ the model

    @property
    def memory(self) -> int:
        """The budget in bytes. A new one counts from the next read on."""
        return self._tuner.memory

    @memory.setter
    def memory(self, value: int) -> None:
        self._tuner.memory = value

    def tuning(self, image: Image, columns: Sequence[Column]) -> Tuning:
        """The w and b with the best rate for the budget, by what has been measured."""
        return self._tuner.tune(self.model(image, columns))

    def model(self, image: Image, columns: Sequence[Column]) -> Model:
        """The cost model of this table, with what has been measured so far."""
        return self._tuner.model(len(image), *self._shapes.of(image, columns))

    def _room(self, image: Image, columns: Sequence[Column]) -> float:
        """Of the window, in bytes."""
        return self._tuner.room(self.model(image, columns))

    @property
    def key_bytes(self) -> float:
        """What a key takes in the window, as those of the last call say."""
        return self._tuner.key_bytes

    @property
    def waiting(self) -> int:
        """How many calls share the scan now, or wait to."""
        with self._turn:
            return len({id(batch.run) for batch in (*self._window.queue, *self._waiting)})

    # ------------------------------------------------------------ rows

    def rows(
        self,
        image: Image,
        needed: npt.NDArray[np.bool_] | None,
        restrict: Restrict,
        columns: Sequence[Column],
        run: Run | None = None,
    ) -> pa.Table:
        """The rows of `image` with a wanted value in every column of `restrict`, which are among `columns`; `needed` are the pages that may
        have some. `run` is told what was done. Raises what reading its own pages raises (OSError, ArrowException), and CQError where
        the run was given up or the scan was ended."""
        by_name = {c.name: c for c in columns}
        name = max(restrict, key=lambda each: len(restrict[each]))
        key, values = by_name[name], in_order(restrict[name].cast(arrow_type(by_name[name].type)))
        part = self._room(image, columns) / _WINDOW_PARTS
        room = max(
            part - _PAGE_BYTES * len(image), part / 2
        )  # fewer, where a table has very many pages for so little memory
        batches = [
            KeyBatch(image, needed, columns, key, Keys.of(part), restrict) for part in parts(values, room)
        ]
        self._tuner.note_keys(
            len(values), sum(batch.keys.room for batch in batches), numeric=is_numeric(values.type)
        )
        return self._serve(batches, columns, run or Run())

    def rows_meeting(
        self,
        image: Image,
        matcher: Matcher,
        count: int,
        columns: Sequence[Column],
        run: Run | None = None,
    ) -> pa.Table:
        """The rows of `image` for which the condition of `matcher` may be true with one of its `count` changes. Raises what `rows`
        raises."""
        self._shapes.of(image, columns)
        return self._serve([ConditionBatch(image, None, columns, matcher, count)], columns, run or Run())

    def _serve(self, batches: Sequence[Waiting], columns: Sequence[Column], run: Run) -> pa.Table:
        """What the batches find, when all of them have met their pages."""
        parts = []
        for batch in batches:
            batch.run = run
        try:
            with self._turn:
                self._waiting.extend(batches)
            for batch in batches:
                while not self._is_done(batch):
                    run.check()
                    self._advance()
                parts.append(batch.rows())
                run.done.matches += parts[-1].num_rows
                with self._turn:
                    self._withdraw(batch)
        finally:
            with self._turn:
                for batch in batches:
                    self._withdraw(batch)
                if not (self._scanning or self._waiting or self._window.queue):
                    self._source.close()
                self._turn.notify_all()
        return pa.concat_tables(parts) if parts else empty(columns)

    def stop(self) -> None:
        """Ends the scan: who waits for rows, or will, gets a CQError."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def _is_done(self, batch: Waiting) -> bool:
        with self._turn:
            if batch.failure is not None:
                raise batch.failure
            return batch.expired and not any(each is batch for each in self._waiting)

    # ------------------------------------------------------------ the scan

    def _advance(self) -> None:
        """Reads on, or waits for who does."""
        with self._turn:
            if self._stopped:
                raise CQError("the scan of a mesh join was ended")
            if self._scanning:
                self._turn.wait()
                return
            self._scanning = True
        try:
            self._iterate()
        finally:
            with self._turn:
                self._scanning = False
                self._turn.notify_all()

    def _iterate(self) -> None:
        """One iteration (Figure 4): expired batches leave, others enter, the next pages are read and met."""
        started = time.perf_counter()
        with self._turn:
            self._admit()
            queue = list(self._window.queue)
            matchers = [each.matcher for each in queue if isinstance(each, ConditionBatch)]
            asked, held = Asked(dict(self._hashed), matchers), self.nbytes
            pages = self._window.next_pages(self._chunk(queue, held))
        if not pages:
            return
        columns = self._columns(queue)
        try:
            hits = self._matching.read(pages, columns, asked, held)
        except Exception as error:
            with self._turn:
                self._matching.buffer = 0
                if not self._fail(pages, error):
                    raise
            return
        met: list[list[Waiting]] = []
        with self._turn:
            held = self.nbytes
            self._matching.buffer = 0  # what was decoded is gone
            try:
                for page, found in zip(pages, hits):
                    met.append(self._window.meet(page))
                    self._keep(found, met[-1])
            except BaseException:
                for part in (part for found in hits for part in found):
                    part.drop_unmet()
                raise
            for batch in [each for each in self._window.queue if each.expired]:
                self._expire(batch)
            held = max(held, self.nbytes)
            self._measure(pages, columns, hits, met, held=held, seconds=time.perf_counter() - started)
        faults.point("mesh.chunk")
        self._read_on()

    def _chunk(self, queue: Sequence[Waiting], held: int) -> int:
        """The pages of the next read for these batches: b, or as many more as have room where the window is not full and it is known what
        their rows take."""
        if not queue:
            return 1
        model = self.model(queue[0].image, queue[0].columns)
        chunk = self._tuner.tune(model).chunk
        if any(fixed_width(column) is None for column in self._columns(queue)):
            return chunk
        return max(chunk, self._tuner.pages_that_fit(model, held))

    def _columns(self, queue: Sequence[Waiting]) -> tuple[Column, ...]:
        """What the queued batches want to have read."""
        return tuple(dict.fromkeys(column for batch in queue for column in batch.columns))

    def _admit(self) -> None:
        """Lets waiting batches in while there is room in the window: at least one, so that the scan never stands still for room."""
        while self._waiting:
            batch = self._waiting[0]
            inside = self._window.nbytes + sum(each.room for each in self._window.queue)
            room = self._room(batch.image, batch.columns)
            if self._window.queue and inside + batch.room > room:
                return
            self._waiting.popleft()
            if batch.expired:
                self._count_changes(batch)
                continue
            if isinstance(batch, KeyBatch):
                hashed = self._hashed.setdefault(batch.key, HashedKeys(arrow_type(batch.key.type)))
                hashed.add(batch.keys)
            self._window.enter(batch)
            largest = sum(each.count for each in self._window.queue)
            for counters in (self.counters, batch.run.done):
                counters.batches += 1
                counters.largest_window = max(counters.largest_window, largest)
            self._note_peak()

    def _keep(self, found: Sequence[Staged], met: Sequence[Waiting]) -> None:
        """Gives the rows of a page to the batches that have met it now."""
        for part in found:
            for batch in met:
                batch.found.append(part.hold())
            if met:
                self._stage.add(part)
            else:  # who wanted them was given up
                part.drop_unmet()
            self.counters.matches += part.count
        self._note_peak()
        if self._stage.nbytes > self._tuner.room_to_stage(self._window_bytes):
            self.counters.spilled += self._stage.spill()

    def _expire(self, batch: Waiting) -> None:
        self._window.leave(batch)
        self._forget_keys(batch)
        self._count_changes(batch)

    def _count_changes(self, batch: Waiting) -> None:
        for counters in (self.counters, batch.run.done):
            counters.changes += batch.count

    def _fail(self, pages: Sequence[Page], error: Exception) -> bool:
        """Takes the batches that need pages which cannot be read out, and tells them; False where nobody needs them. Others go
        on: such a page may be of a version that only a batch which was given up is about."""
        places = {id(each.image): [each.image.place(page) for page in pages] for each in self._window.queue}
        failed = [
            each
            for each in self._window.queue
            if any(place is not None and each.left[place] for place in places[id(each.image)])
        ]
        for batch in failed:
            batch.failure = error
            self._withdraw(batch)
        return bool(failed)

    def _forget_keys(self, batch: Waiting) -> None:
        if not isinstance(batch, KeyBatch):
            return
        self._hashed[batch.key].remove(batch.keys)
        others = (each.key for each in self._window.queue if isinstance(each, KeyBatch))
        if batch.key not in others:
            del self._hashed[batch.key]

    def _withdraw(self, batch: Waiting) -> None:
        """Takes a batch out, wherever it is."""
        self._waiting = deque(each for each in self._waiting if each is not batch)
        if any(each is batch for each in self._window.queue):
            self._window.leave(batch)
            self._forget_keys(batch)
        batch.release()

    # ------------------------------------------------------------ measuring

    @property
    def factors(self) -> Factors:
        """Those of the model now."""
        return self._tuner.factors

    @property
    def nbytes(self) -> int:
        """What its structures take now: the page buffer, H, Q, and rows that wait for their batches' expiry."""
        return self._window_bytes + self._matching.buffer + self._stage.nbytes

    @property
    def _window_bytes(self) -> int:
        hashed = sum(each.nbytes for each in self._hashed.values())
        return hashed + self._window.nbytes + sum(each.nbytes for each in self._window.queue)

    def _note_peak(self) -> None:
        self.counters.peak = max(self.counters.peak, self.nbytes)

    def _measure(
        self,
        pages: Sequence[Page],
        columns: Sequence[Column],
        hits: Sequence[Sequence[Staged]],
        met: Sequence[Sequence[Waiting]],
        *,
        held: int,
        seconds: float,
    ) -> None:
        """Counts a read, for whom it was as well, and learns from it what reads cost."""
        rows = [self._source.rows(page, columns) for page in pages]
        matches = sum(part.count for found in hits for part in found)
        row_bytes = self._tuner.row_bytes or 1.0
        self.counters.note_read(len(pages), int(sum(rows) * row_bytes), seconds, held)
        for run in {batch.run for batches in met for batch in batches}:
            mine = [n for n, batches in enumerate(met) if any(batch.run is run for batch in batches)]
            nbytes = int(sum(rows[n] for n in mine) * row_bytes)
            run.done.note_read(len(mine), nbytes, seconds, held)
        self._tuner.learn(len(pages), sum(rows), sum(map(bool, hits)), matches, seconds)
