"""What a mesh has done, for EXPLAIN ANALYZE and for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Counters"]


@dataclass
class Counters:
    """What a mesh has done since it was made."""

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
    """Rows that were wanted by some batch."""
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

    def since(self, before: Counters) -> Counters:
        """What was done since `before`; the greatest values are those of all time."""
        steady = ("peak", "largest_window")
        return Counters(
            **{
                name: value if name in steady else value - getattr(before, name)
                for name, value in vars(self).items()
            }
        )

    def copy(self) -> Counters:
        """The values as they are now."""
        return replace(self)
