"""The source transactions that changes belong to: which there are, in which order they come, and their commit times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.model import Table
from cq_engine.context.services import Services
from cq_engine.core.arrays import encode_values, group_starts
from cq_engine.core.errors import AnalysisError, TransactionError
from cq_engine.core.values import python_values
from cq_engine.storage.identities import Numbers
from cq_engine.transactions.commit import next_timestamp

__all__ = [
    "Transactions",
    "in_order",
    "numbered",
    "role_column",
    "sorted_places",
    "timestamps",
    "transactions_of",
]


@dataclass(frozen=True)
class Transactions:
    """The source transactions in one table's changes, in the order of their first change: the value of each, its least
    `order` and its greatest commit time, which are None where it has none."""

    values: Sequence[Any]
    least: Sequence[Any]
    greatest: Sequence[Any]


# ---------------------------------------------------------------- columns that say what a change is


def role_column(table: Table, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column `name` of the changes in a type whose values Arrow compares. Raises AnalysisError for arrays, maps, structs
    and variants, by which nothing can be ordered or told apart."""
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return role_column(table, name, column.cast(kind.value_type))
    if pa.types.is_nested(kind):
        raise AnalysisError(
            f"column {name} of the changes of {table.name} has values that are not single ones",
            detail="operation, transaction, order and commit time are numbers, text, days or times",
        )
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}.get(
        kind
    )
    return column if plain is None else column.cast(plain)


def numbered(column: pa.ChunkedArray) -> tuple[Numbers, list[Any]]:
    """Of each row the place of its value among the distinct values, and these in the order of their first row."""
    distinct, places = encode_values(column)
    return places, python_values(distinct)


def sorted_places(table: Table, columns: Mapping[str, Any]) -> Numbers:
    """The places of rows sorted by the columns, equal ones as they come."""
    rows = pa.table(dict(columns))
    try:
        found = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names])
    except (pa.ArrowException, TypeError) as error:
        raise AnalysisError(f"the changes of {table.name} cannot be ordered", detail=str(error)) from error
    return np.asarray(found, np.int64)


# ---------------------------------------------------------------- transactions


def transactions_of(
    table: Table,
    count: int,
    transactions: pa.ChunkedArray | None,
    orders: pa.ChunkedArray | None,
    times: pa.ChunkedArray | None,
) -> tuple[Numbers, Transactions]:
    """Of each of `count` changes the place of its transaction among those that there are, and these. Raises AnalysisError."""
    groups, values = np.zeros(count, np.int64), [None] if count else []
    if transactions is not None:
        groups, values = numbered(transactions)
    least, greatest = [None] * len(values), [None] * len(values)
    for group, place, _ in _ends(table, groups, orders) if orders is not None else ():
        least[group] = place
    for group, _, moment in _ends(table, groups, times) if times is not None else ():
        greatest[group] = moment
    return groups, Transactions(values, least, greatest)


def _ends(table: Table, groups: Numbers, column: pa.ChunkedArray) -> list[tuple[int, Any, Any]]:
    """Of each group with values of the column: the group, the least and the greatest."""
    there = np.flatnonzero(np.asarray(pc.is_valid(column)))
    groups, column = groups[there], column.take(pa.array(there))
    order = sorted_places(table, {"group": pa.array(groups), "value": column})
    starts = group_starts(groups[order])
    ends = np.append(starts[1:], True)[: len(starts)]
    least, greatest = (python_values(column.take(pa.array(order[each]))) for each in (starts, ends))
    return list(zip(groups[order[starts]].tolist(), least, greatest))


def in_order(parts: Sequence[Transactions], *, ordered: bool) -> tuple[list[Any], list[Any]]:
    """The transactions of all tables in order, where `ordered` by their least orders, else by value, those that are equal as
    they were given; and the greatest commit time of each. Raises AnalysisError where two of them do not compare."""
    least: dict[Any, Any] = {}
    greatest: dict[Any, Any] = {}
    try:
        for part in parts:
            for value, low, high in zip(part.values, part.least, part.greatest):
                known = least.setdefault(value, None)
                least[value] = low if known is None or (low is not None and low < known) else known
                seen = greatest.get(value)
                greatest[value] = high if seen is None or (high is not None and high > seen) else seen
        found = sorted(least, key=least.__getitem__ if ordered else None) if len(least) > 1 else list(least)
    except TypeError as error:
        raise AnalysisError(
            "the transactions cannot be ordered", detail=str(error), hint="name an `order` column"
        ) from error
    return found, [greatest[value] for value in found]


# ---------------------------------------------------------------- commit times


def timestamps(
    services: Services, times: Sequence[Any], commit_time: str | datetime | None, *, clamp: bool = False
) -> list[datetime]:
    """The commit timestamp of each transaction in order; with `clamp`, the nearest one that it can have.

    Raises TransactionError where one goes back.
    """
    if not isinstance(commit_time, str):
        return [next_timestamp(services, commit_time)] * len(times)
    found: list[datetime] = []
    least, most = (services.catalog.newest_timestamp, services.now()) if clamp else (None, None)
    for value in times:
        given = _moment(value)
        if clamp and given is not None:
            given = min(given, most or given)
            given = max([given, *(each for each in (least, *found[-1:]) if each is not None)])
        moment = next_timestamp(services, given)
        if found and moment < found[-1]:
            raise TransactionError(
                f"the commit time {moment.isoformat()} lies before that of the transaction before it",
                detail=f"which is {found[-1].isoformat()}",
                hint="order the transactions by their commit time",
            )
        found.append(moment)
    return found


def _moment(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    raise AnalysisError(f"a commit time is a timestamp, not {value!r}")
