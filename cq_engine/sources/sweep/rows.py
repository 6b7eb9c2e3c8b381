"""Rows as the sweeps compare them: join values, keys, and the net change of a transaction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from cq_engine.sources.sweep.model import Change, Index, Relation, Row

__all__ = ["Net", "Values", "net", "picking", "settled", "values_of"]

Net = Mapping[Row, tuple[Row | None, Row | None]]
"""By key, the row before and after; no key has the same row twice."""

Values = Callable[[Row], Row | None]
"""From a row to the values by which it is joined; None where NULL is among them."""

_NAN = math.nan


def settled(row: Row) -> Row:
    """The row with one NaN in the place of each, so that rows that are the same are equal."""
    for value in row:
        if value != value:  # noqa: PLR0124 - only NaN differs from itself
            return tuple(_NAN if value != value else value for value in row)  # noqa: PLR0124
    return row


def picking(relation: Relation, columns: Sequence[str]) -> Callable[[Row], Row]:
    """From a row of the relation to its values of these columns."""
    places = relation.places(columns)
    if len(places) == 1:
        place = places[0]
        return lambda row: (row[place],)
    return lambda row: tuple([row[place] for place in places])


def values_of(relation: Relation, index: Index) -> Values:
    """From a row of the relation to what an edge compares of it; None where NULL is among that."""
    columns, normal = index
    pick = picking(relation, columns)

    def plain(row: Row) -> Row | None:
        values = pick(row)
        return None if None in values else values

    def normalized(row: Row) -> Row | None:
        values = pick(row)
        if None in values:
            return None
        return settled(
            tuple([value if change is None else change(value) for value, change in zip(values, normal)])
        )

    return normalized if any(normal) else plain


def net(changes: Iterable[Change], key: Callable[[Row], Row]) -> Net:
    """What one transaction has changed of a relation, by key.

    Rows are counted, so the order of the changes does not matter: keys may be swapped in one statement, as servers allow that
    check constraints late. Raises ValueError where a key has two rows afterwards.
    """
    counts: dict[Row, dict[Row, int]] = {}
    for change in changes:
        for row, sign in ((change.before, -1), (change.after, 1)):
            if row is not None:
                same = settled(row)
                of_key = counts.setdefault(key(same), {})
                of_key[same] = of_key.get(same, 0) + sign
    found: dict[Row, tuple[Row | None, Row | None]] = {}
    for value, of_key in counts.items():
        before = [row for row, count in of_key.items() if count < 0]
        after = [row for row, count in of_key.items() if count > 0]
        if len(before) > 1 or len(after) > 1 or any(abs(count) > 1 for count in of_key.values()):
            raise ValueError(f"a transaction has changed key {value} to or from two rows")
        if before or after:
            found[value] = (before[0] if before else None, after[0] if after else None)
    return found
