"""The states of a relation, as far as known updates tell them: the rows of every key that they have touched, at any version."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from cq_engine.sources.sweep.model import Index, Row
from cq_engine.sources.sweep.rows import Net, Values

__all__ = ["Images"]


class Images:
    """The rows of touched keys at one version, which can be moved back and forth.

    A version is a number of updates of the relation's source. A key is touched if one of the known updates has changed its row.
    The row of a key that is not touched is the same in all versions from the oldest known update to the newest, so whatever
    an answer from any of these says of it holds; the row of a touched key is known without an answer. That is the paper's
    compensation ΔV − ΔR ⋈ TempView, for several updates of R at once and in both directions.

    Moving costs as much as there are changes between the versions, and a look-up as much as it finds.
    """

    def __init__(self, values: Mapping[Index, Values]) -> None:
        self._values = values
        self._log: list[tuple[int, Row, Row | None, Row | None]] = []
        self._start = 0
        self._at = 0
        self._version = 0
        self._touched: dict[Row, list[int]] = {}
        self._newest: dict[Row, Row | None] = {}
        self._rows: dict[Row, Row] = {}
        self._by: dict[Index, dict[Row, dict[Row, Row]]] = {index: {} for index in values}

    def __len__(self) -> int:
        """Changes that are known."""
        return len(self._log) - self._start

    def contradiction(self, changes: Net) -> Row | None:
        """The key of a row that was another one before an update than after those that are known; None where there is none."""
        for key, (before, _) in changes.items():
            if key in self._newest and self._newest[key] != before:
                return key
        return None

    def add(self, version: int, changes: Net) -> None:
        """Makes an update known that comes after all others and leads to this version."""
        for key, (before, after) in changes.items():
            versions = self._touched.get(key)
            if versions is None:
                self._touched[key] = [version]
                self._put(key, before)
            else:
                versions.append(version)
            self._newest[key] = after
            self._log.append((version, key, before, after))

    def forget(self, version: int) -> None:
        """Forgets the updates that have led to this version and those before it."""
        self.move(max(version, self._version))
        while self._start < len(self._log) and self._log[self._start][0] <= version:
            _, key, _, _ = self._log[self._start]
            versions = self._touched[key]
            del versions[0]
            if not versions:
                del self._touched[key], self._newest[key]
                self._put(key, None)
            self._start += 1
        if self._start * 2 > len(self._log):
            del self._log[: self._start]
            self._at -= self._start
            self._start = 0

    def move(self, version: int) -> None:
        """Makes `matching` tell of this version."""
        while self._at < len(self._log) and self._log[self._at][0] <= version:
            _, key, _, after = self._log[self._at]
            self._put(key, after)
            self._at += 1
        while self._at > self._start and self._log[self._at - 1][0] > version:
            self._at -= 1
            _, key, before, _ = self._log[self._at]
            self._put(key, before)
        self._version = version

    def touched(self, key: Row) -> bool:
        """Whether a known update has changed the row of the key."""
        return key in self._touched

    def changed(self, key: Row, one: int, other: int) -> bool:
        """Whether a known update between two versions has changed the row of the key."""
        versions = self._touched.get(key)
        return versions is not None and bisect_right(versions, one) != bisect_right(versions, other)

    def matching(self, index: Index, values: Row) -> Iterable[tuple[Row, Row]]:
        """(key, row) of touched keys whose row has these values."""
        return self._by[index].get(values, {}).items()

    def _put(self, key: Row, row: Row | None) -> None:
        before = self._rows.pop(key, None)
        if row is not None:
            self._rows[key] = row
        for index, values in self._values.items():
            by = self._by[index]
            if before is not None and (old := values(before)) is not None:
                of_value = by[old]
                del of_value[key]
                if not of_value:
                    del by[old]
            if row is not None and (new := values(row)) is not None:
                by.setdefault(new, {})[key] = row
