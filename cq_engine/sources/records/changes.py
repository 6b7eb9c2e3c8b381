"""Changes that records tell of, on their way into a commit or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import pyarrow as pa

from cq_engine.core.arrays import array, repeated
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type
from cq_engine.sources.json_values import Unreadable
from cq_engine.sources.poison import DeadLetters
from cq_engine.sources.tick import COMMITTED, OPERATION, TRANSACTION, Tick

__all__ = ["Changes"]

_MOMENT = pa.timestamp("us", tz="UTC")


@dataclass
class Changes:
    """Changes column by column, and what could not be read among them."""

    tick: Tick
    letters: DeadLetters
    values: list[list[Any]] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values) + len(self.letters)

    @cached_property
    def columns(self) -> list[tuple[str, Column, bool]]:
        """The source's name of each column, the column, and whether it is one of the key."""
        sources = {each.target: each.name for each in self.tick.capture.columns}
        key = {name.lower() for name in self.tick.key}
        return [(sources[c.name], c, c.name.lower() in key) for c in self.tick.columns]

    def check_filled(self, row: list[Any], *, whole: bool) -> None:
        """Raises Unreadable where a row has NULL in its key, or, where it is `whole`, in a column that is NOT NULL."""
        for found, (name, column, is_key) in zip(row, self.columns):
            if found is None and (is_key or (whole and not column.nullable)):
                raise Unreadable(f"its {name} is NULL")

    def number(self, transaction: str | None) -> int:
        """The place of a transaction among those that have changes here; without a name it is one of its own."""
        number = len(self._numbers)
        return self._numbers.setdefault(f"\\0{number}" if transaction is None else transaction, number)

    def add(self, operation: str, row: list[Any], number: int, milliseconds: int | None) -> None:
        """Adds a change of the transaction with this number. Raises Unreadable for a time that there is not."""
        try:
            moment = datetime.fromtimestamp((milliseconds or 0) / 1000, timezone.utc)
        except (ArithmeticError, OSError, TypeError, ValueError):
            raise Unreadable(f"its time is {milliseconds!r} milliseconds since 1970") from None
        self.values.append(row)
        self.operations.append(operation)
        self.transactions.append(number)
        self.times.append(moment)

    def take(self) -> Mapping[str, pa.Table]:
        """All of it by tables, as the tick applies it: the capture's own, and that of dead letters."""
        given = {self.tick.table.name: self._rows()}
        last = max(self.transactions, default=0)
        moment = max(self.times, default=self.tick.services.now())
        for name, letters in self.letters.take().items():
            numbered = letters.append_column(TRANSACTION, repeated(last, pa.int64(), letters.num_rows))
            moments = repeated(moment, _MOMENT, letters.num_rows)
            given[name] = numbered.append_column(COMMITTED, moments)
        return given

    def _rows(self) -> pa.Table:
        values = list(zip(*self.values)) if self.values else [()] * len(self.columns)
        arrays = {
            column.name: array(some, arrow_type(column.type))
            for (_, column, _), some in zip(self.columns, values)
        }
        arrays[OPERATION] = pa.array(self.operations, pa.string())
        arrays[TRANSACTION] = pa.array(self.transactions, pa.int64())
        arrays[COMMITTED] = pa.array(self.times, _MOMENT)
        return pa.table(arrays)
