"""What a mesh has done, for EXPLAIN ANALYZE and for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass
class Counters:
    """What a mesh has done since it was made, or for one of its runs."""

    batches: int = 0
    changes: int = 0
    """Keys that have met the whole table."""
    reads: int = 0
    pages: int = 0
    bytes: int = 0
    """Of the pages, as they are in memory."""
    decoded_keys_only: int = 0
    """Pages of which only the key column was decoded."""
    matches: int = 0
    """Rows that were wanted: of a mesh by some batch, each once; of a run the rows that it got."""
    spilled: int = 0
    """Bytes of them that went to files."""
    seconds: float = 0.0
    """Of reading and matching."""
    peak: int = 0
    """The most bytes that its own structures have had at a time."""
    largest_window: int = 0
    """The most keys that stood in the window at a time."""

    @property
    def rate(self) -> float:
        """Changes per second of scanning."""
        return self.changes / self.seconds if self.seconds else 0.0

    def note_read(self, pages: int, nbytes: int, seconds: float, held: int) -> None:
        """A read of so many pages and bytes, at the end of which the mesh's structures took `held` bytes."""
        self.reads += 1
        self.pages += pages
        self.bytes += nbytes
        self.seconds += seconds
        self.peak = max(self.peak, held)
