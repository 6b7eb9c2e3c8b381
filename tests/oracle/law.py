"""The delta law (correct, minimal, old values, order), checked delta by delta against results from scratch."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

__all__ = ["Account", "Broken", "Change", "close", "difference", "row_of", "unique_columns"]

Row = tuple[Any, ...]
TOLERANCE = 1e-9
DECIMAL_AVERAGE = 1e-6
"""Spark's AVG of decimals is a rounded decimal, DuckDB's a double."""


class Broken(AssertionError):
    """The delta law does not hold."""


@dataclass(frozen=True)
class Change:
    """A delta, as the engine or the rules gave it."""

    version: int
    sequence: int
    marker: str
    key: Row | None
    new: Row | None
    old: Row | None


def value_of(value: Any) -> Any:
    """One form per value: numbers that are exact are Decimal, −0.0 is 0.0, a date is text."""
    if value is None or isinstance(value, (bool, str, Decimal)):
        return value
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return str(value)


def row_of(row: Iterable[Any]) -> Row:
    return tuple(map(value_of, row))


def close(a: Any, b: Any) -> bool:
    """Equality; of two floats within the tolerance."""
    if a == b and type(a) is type(b):
        return True
    numbers = (float, Decimal)
    if not isinstance(a, numbers) or not isinstance(b, numbers):
        return False
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        return a == b
    allowed = TOLERANCE if isinstance(a, float) and isinstance(b, float) else DECIMAL_AVERAGE
    return abs(float(a) - float(b)) <= allowed * max(1.0, abs(float(a)), abs(float(b)))


def _alike(a: Row | None, b: Row | None) -> bool:
    if a is None or b is None:
        return a is b
    return len(a) == len(b) and all(map(close, a, b))


def _rank(row: Row) -> tuple[tuple[str, Any], ...]:
    """Sorts rows so that alike ones stand alike: whole and decimal numbers with floats, coarsely."""
    return tuple(
        ("number", round(float(v), 4)) if isinstance(v, (float, Decimal)) else (type(v).__name__, str(v))
        for v in row
    )


def difference(got: Iterable[Row], wanted: Iterable[Row]) -> str:
    """Empty where the two bags of rows are alike."""
    left, right = Counter(got), Counter(wanted)
    common = left & right
    rest, missing = list((left - common).elements()), list((right - common).elements())
    extra = []
    for row in sorted(rest, key=_rank):
        found = next((i for i, each in enumerate(missing) if _alike(row, each)), None)
        if found is None:
            extra.append(row)
        else:
            del missing[found]
    return f"too much: {extra[:5]}; missing: {missing[:5]}" if extra or missing else ""


class Account:
    """A result, accumulated from deltas: by key, or as a bag."""

    def __init__(self, rows: Iterable[Row], keyed: bool) -> None:
        self.keyed = keyed
        self.bag: list[Row] = list(rows)
        self.by_key: dict[Row, Row] = {}
        self.last: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> list[Row]:
        return list(self.by_key.values()) if self.keyed else self.bag

    def start(self, keys: Sequence[int]) -> None:
        """Takes the rows given at first by key."""
        for row in self.bag:
            key = tuple(row[i] for i in keys)
            if key in self.by_key:
                raise Broken(f"key {key} stands for two rows of the result: {self.by_key[key]}, {row}")
            self.by_key[key] = row

    def apply(self, changes: Sequence[Change]) -> None:
        """The deltas of one commit (or of one compressed refresh), in the order given."""
        for change in changes:
            place = (change.version, change.sequence)
            if place <= self.last:
                raise Broken(f"law 5: {place} comes after {self.last}")
            self.last = place
            self._check_shape(change)
        if self.keyed:
            self._apply_by_key(changes)
        else:
            self._apply_to_bag(changes)

    def _check_shape(self, change: Change) -> None:
        if (change.new is None) != (change.marker == "D") or (change.old is None) != (change.marker == "I"):
            raise Broken(f"law 3: {change} has a row too many or too few")
        if change.marker == "U" and change.new == change.old:
            raise Broken(f"law 2: no-op update {change}")
        if (change.key is None) == self.keyed or (change.marker == "U" and not self.keyed):
            raise Broken(f"{change} does not fit the result key")

    def _apply_by_key(self, changes: Sequence[Change]) -> None:
        keys = Counter(change.key for change in changes)
        if keys and max(keys.values()) > 1:
            raise Broken(f"law 2: key {keys.most_common(1)[0][0]} has several deltas in one commit")
        for change in changes:
            assert change.key is not None
            known = self.by_key.get(change.key)
            if (known is None) != (change.marker == "I"):
                raise Broken(f"law 1: {change}, but the result has {known}")
            if change.old is not None and not _alike(change.old, known):
                raise Broken(f"law 3: {change}, but the result has {known}")
            if change.new is None:
                del self.by_key[change.key]
            else:
                self.by_key[change.key] = change.new

    def _apply_to_bag(self, changes: Sequence[Change]) -> None:
        gone = Counter(c.old for c in changes if c.marker == "D")
        come = Counter(c.new for c in changes if c.marker == "I")
        if gone & come:
            raise Broken(f"law 2: deleted and inserted in one commit: {list((gone & come).elements())[:3]}")
        for row in gone.elements():
            assert row is not None
            found = row if row in self.bag else next((r for r in self.bag if _alike(r, row)), None)
            if found is None:
                raise Broken(f"law 3: deleted row {row} is not in the result")
            self.bag.remove(found)
        self.bag += [row for row in come.elements() if row is not None]

    def check(self, wanted: Iterable[Row], where: str) -> None:
        """Law 1: what is accumulated is the result from scratch."""
        different = difference(self.rows, wanted)
        if different:
            raise Broken(f"law 1 {where}: {different}")


def replay(
    start: Iterable[Row],
    keys: Sequence[int] | None,
    changes: Iterable[Change],
    results: Sequence[tuple[int, Sequence[Row]]],
) -> None:
    """Applies `changes` version by version and compares with `results` (version, rows) at every one of them."""
    account = Account(start, keys is not None)
    if keys is not None:
        account.start(keys)
    by_version: dict[int, list[Change]] = defaultdict(list)
    for change in changes:
        by_version[change.version].append(change)
    unknown = set(by_version) - {version for version, _ in results}
    if unknown:
        raise Broken(f"law 4: deltas of versions that were no commits: {sorted(unknown)}")
    for version, rows in results:
        account.apply(by_version[version])
        account.check(rows, f"at version {version}")


def unique_columns(results: Sequence[Sequence[Row]], width: int) -> list[tuple[int, ...]]:
    """Single columns and pairs that are unique in each of the results and hold no float."""
    exact = [i for i in range(width) if not any(isinstance(r[i], float) for rows in results for r in rows)]
    candidates = [(i,) for i in exact] + [(i, j) for i in exact for j in exact if i < j]

    def unique(key: tuple[int, ...]) -> bool:
        return all(len({tuple(r[i] for i in key) for r in rows}) == len(rows) for rows in results)

    return [key for key in candidates if unique(key)]
