"""The cost model of MESHJOIN (Polyzotis et al., ICDE 2007, section 3.2): memory, time and rate by w and b, and the best of both.

Each iteration reads `b` pages of the table R and lets `w` changes of the stream S into the window, which stay for one cycle of
`pages / b` iterations. The more pages are read at once, the fewer requests; the more changes stand in the window, the more of them share a
read. Both take memory, so there is a best `b` for a budget (Figure 5 b) and one that needs the least memory for a rate (Figure 5 a).

>>> table = Relation(pages=350, page_bytes=1_200_000, row_bytes=120)
>>> model = Model(table, Stream(), Factors())
>>> best = model.best_rate(4_000_000)
>>> best.memory <= 4_000_000 and best.rate > 0
True
>>> least = model.least_memory(best.rate)
>>> least.memory <= best.memory
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Factors", "Model", "Relation", "Stream", "Tuning"]

_TRIED = 2_048
"""Numbers of pages that are tried one by one; beyond, in steps of a part in so many of the number."""


@dataclass(frozen=True)
class Factors:
    """What the parts of an iteration cost, in seconds (Table 1). The defaults are of a machine of 2024 with its files cached."""

    request: float = 1e-3
    """A read of any number of pages: the part of c_I/O(b) that does not grow with b."""
    page_byte: float = 1.5e-9
    """A byte of a page, read and decoded: the part of c_I/O(b) that grows with b."""
    expire: float = 2e-7
    """c_E: taking a change out of the window."""
    take: float = 1e-7
    """c_S: reading a change from the stream."""
    add: float = 3e-7
    """c_A: putting a change into the window."""
    probe: float = 1e-8
    """c_H: asking the window for one row of R."""
    produce: float = 3e-7
    """c_O: a row of R that matches, kept for the changes that it matches."""


@dataclass(frozen=True)
class Relation:
    """The table R. `pages` is N_R, `page_bytes` v_P and `row_bytes` v_R, as they are in memory; `selectivity` is σ, the share of the
    table's rows that match some change in the window."""

    pages: int
    page_bytes: float
    row_bytes: float
    selectivity: float = 0.01

    @property
    def page_rows(self) -> float:
        """Rows of a page: v_P / v_R."""
        return self.page_bytes / self.row_bytes


@dataclass(frozen=True)
class Stream:
    """The stream S. `row_bytes` is v_S, what is kept of a change for the time that it is in the window (its key); `fudge` is f, how
    many times as much the hash table takes; `pointer_bytes` is what the queue takes for it."""

    row_bytes: float = 8.0
    fudge: float = 1.0
    pointer_bytes: float = 4.0


@dataclass(frozen=True)
class Tuning:
    """Values of w and b, and what they come to.

    Attributes:
        batch: w, changes that enter the window with each read.
        chunk: b, pages of a read.
        memory: M, bytes (1).
        seconds: c_loop, of an iteration (2).
        rate: μ, changes per second (3).
        pages_per_change: pages that are read for a change (4).
        pages_per_second: pages that are read in a second (4).
        cycle: seconds of a whole scan, which is the time from a change's entry to its last match.
        window: changes in the window at a time.
    """

    batch: float
    chunk: int
    memory: float
    seconds: float
    rate: float
    pages_per_change: float
    pages_per_second: float
    cycle: float
    window: float


@dataclass(frozen=True)
class Model:
    """The equations for one table and one stream."""

    relation: Relation
    stream: Stream
    factors: Factors

    def memory(self, batch: float, chunk: int) -> float:
        """M in bytes: the page buffer, the batch, the queue and the hash table (1)."""
        window = batch * self.relation.pages / chunk
        kept = self.stream.pointer_bytes + self.stream.fudge * self.stream.row_bytes
        return chunk * self.relation.page_bytes + batch * self.stream.row_bytes + window * kept

    def seconds(self, batch: float, chunk: int) -> float:
        """c_loop: an iteration (2)."""
        return self._read_seconds(chunk) + batch * self._change_seconds

    def rate(self, batch: float, chunk: int) -> float:
        """μ: changes per second (3)."""
        return batch / self.seconds(batch, chunk)

    def of(self, batch: float, chunk: int) -> Tuning:
        """What w and b come to, by all equations."""
        seconds = self.seconds(batch, chunk)
        iterations = self.relation.pages / chunk
        return Tuning(
            batch,
            chunk,
            self.memory(batch, chunk),
            seconds,
            batch / seconds,
            chunk / batch,
            chunk / seconds,
            iterations * seconds,
            batch * iterations,
        )

    def largest_batch(self, memory: float, chunk: int) -> float:
        """The largest w with which `chunk` pages stay within `memory` (1); 0 or less where there is none."""
        kept = self.stream.pointer_bytes + self.stream.fudge * self.stream.row_bytes
        room = memory - chunk * self.relation.page_bytes
        return room / (self.stream.row_bytes + kept * self.relation.pages / chunk)

    def smallest_batch(self, rate: float, chunk: int) -> float | None:
        """The least w that serves `rate` changes per second, λ·c_loop (6), where c_loop itself grows with w; None where no w does."""
        share = rate * self._change_seconds
        return None if share >= 1 else rate * self._read_seconds(chunk) / (1 - share)

    def best_rate(self, memory: float) -> Tuning:
        """The w and b that serve the most changes per second within `memory` bytes (maximizing μ, Figure 5 b).

        Raises ValueError where not even one page and one change fit.
        """
        best: Tuning | None = None
        for chunk in self._chunks(memory):
            batch = self.largest_batch(memory, chunk)
            if batch * self.relation.pages / chunk >= 1:
                tuning = self.of(batch, chunk)
                best = tuning if best is None or tuning.rate > best.rate else best
        if best is None:
            raise ValueError(
                f"{memory:.0f} bytes hold no page of {self.relation.page_bytes:.0f} and a change"
            )
        return best

    def least_memory(self, rate: float) -> Tuning:
        """The w and b that serve `rate` changes per second in the least memory (minimizing M, Figure 5 a).

        Raises ValueError where no memory is enough.
        """
        best: Tuning | None = None
        for chunk in self._chunks(math.inf):
            batch = self.smallest_batch(rate, chunk)
            if batch is not None:
                tuning = self.of(batch, chunk)
                best = tuning if best is None or tuning.memory < best.memory else best
        if best is None:
            raise ValueError(f"no memory serves {rate:g} changes per second")
        return best

    @property
    def _change_seconds(self) -> float:
        return self.factors.expire + self.factors.take + self.factors.add

    def _read_seconds(self, chunk: int) -> float:
        rows = chunk * self.relation.page_rows
        read = self.factors.request + chunk * self.relation.page_bytes * self.factors.page_byte
        return read + rows * (self.factors.probe + self.relation.selectivity * self.factors.produce)

    def _chunks(self, memory: float) -> Iterator[int]:
        """Values of b: 1 to all pages, as far as they fit; beyond `_TRIED` in growing steps."""
        chunk = 1
        while chunk <= self.relation.pages and chunk * self.relation.page_bytes <= memory:
            yield chunk
            chunk += 1 + chunk // _TRIED
