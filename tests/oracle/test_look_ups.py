"""What a look-up leaves out makes no difference: row versions with it and without it, on generated histories.

No Spark: change rows and images are those of a recorded history, and every interval of it is tried.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from cq_engine.catalog.model import VersionedTable
from cq_engine.core.columns import BEFORE, FOREVER, Column
from cq_engine.core.limits import DEFAULT_LIMITS
from cq_engine.core.types import arrow_schema
from cq_engine.planner.forms import Decision, LookUp, Reference
from cq_engine.refresh.look_ups import LookUps
from cq_engine.refresh.report import Report
from cq_engine.refresh.source_rows import image_rows, row_versions, unite
from cq_engine.storage.rows import change_columns, conform
from cq_engine.storage.uncompacted_log import UncompactedLog
from tests.oracle.budget import budget
from tests.oracle.generate import History
from tests.oracle.recorded import Recorded, record
from tests.oracle.shop import shop_histories

KEYS = (
    Reference("orders", ("cust",), "customers", ("c",), 0),
    Reference("lines", ("o",), "orders", ("o",), 0),
)
WANTED = {
    "customers": (("c",),),
    "orders": (("o",), ("cust",), ("o", "cust")),
    "lines": (("o",), ("o", "n"), ("n",)),
}
Restrict = Mapping[str, pa.Array]
RESTING = (BEFORE, FOREVER)
"""From and to which version rows are valid that an interval does not change."""


class _Interval:
    """The tables over (a, b], each with its change rows from a start of its own on."""

    def __init__(self, recorded: Recorded, chance: random.Random, compressed: bool) -> None:
        self.recorded, self.compressed = recorded, compressed
        self.b = chance.randint(1, recorded.newest)
        self.a = chance.randint(0, self.b - 1)
        self.tables = {
            spec.name: VersionedTable(
                n, "base", spec.name, tuple(Column(c, kind.lower()) for c, kind in spec.columns), spec.key
            )
            for n, spec in enumerate(recorded.history.tables)
        }
        self.starts = {name: chance.randint(0, self.a) for name in self.tables}
        self.logs = {name: self._log(name) for name in self.tables}

    def _log(self, name: str) -> UncompactedLog:
        table = self.tables[name]
        columns = change_columns(table)
        names = [c.name for c in columns]
        rows = [
            dict(zip(names, (*_plain(row), kind, version)))
            for row, _, kind, version in self.recorded.changes[name]
            if self.starts[name] < version <= self.b
        ]
        found = conform(pa.Table.from_pylist(rows, arrow_schema(columns)), columns)
        return UncompactedLog.of(table, found, self.a, self.b, self.compressed)

    def base(self, name: str, restrict: Restrict) -> pa.Table:
        """The image at the table's start, as a restricted read gives it."""
        columns = self.tables[name].columns
        image = self.recorded.images[self.starts[name]][name].rows.values()
        rows = [dict(zip((c.name for c in columns), _plain(row))) for row in image]
        return _among(pa.Table.from_pylist(rows, arrow_schema(columns)), restrict)

    def versions(self, name: str, read: Restrict, wanted: Restrict, undo: bool) -> Counter[tuple[Any, ...]]:
        """The row versions with wanted values, if the base is read with `read`."""
        rows = _among(row_versions(self.logs[name], self.base(name, read), undo), wanted)
        return Counter(tuple(row.values()) for row in rows.to_pylist())

    def gathered(
        self, name: str, reads: Sequence[Restrict], groups: Sequence[Restrict]
    ) -> Counter[tuple[Any, ...]]:
        """The versions of rows that change and of those with the wanted values of a group, if the base is read with `reads`."""
        log = self.logs[name]
        bases = [partial(self.base, name, read) for read in reads]
        images = [image_rows(log, base, wanted, 0) for base, wanted in zip(bases, groups)]
        return Counter(tuple(row.values()) for row in unite(log, images, log.moving).to_pylist())

    def look_ups(self, decision: Decision) -> tuple[LookUps, list[LookUp]]:
        report = Report(decision)
        log = self.logs.__getitem__
        return LookUps(
            self.tables, KEYS, report, log, lambda table: self.starts[table.name], DEFAULT_LIMITS
        ), report.look_ups


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if v is None else v if isinstance(v, str) else int(v) for v in row)


def _among(rows: pa.Table, restrict: Restrict) -> pa.Table:
    for name, values in restrict.items():
        rows = rows.filter(pc.is_in(rows.column(name), value_set=values))
    return rows


def _wanted(chance: random.Random, columns: tuple[str, ...]) -> dict[str, pa.Array]:
    return {
        name: pa.array(sorted(chance.sample(range(1, 10), chance.randint(1, 9))), pa.int32())
        for name in columns
    }


def check(history: History, seed: int, saved: Counter[str]) -> None:
    """Tries intervals and restrictions of one history."""
    recorded, chance = record(history), random.Random(seed)
    if recorded.newest < 1:
        return
    for _ in range(30):
        interval = _Interval(recorded, chance, chance.random() < 0.5)
        name = chance.choice(list(WANTED))
        wanted, other = (_wanted(chance, chance.choice(WANTED[name])) for _ in range(2))
        expected = interval.versions(name, wanted, wanted, undo=True)
        every = interval.versions(name, {}, {}, undo=True)
        either = expected | interval.versions(name, other, other, undo=True)
        gathered = Counter({row: n for row, n in every.items() if row[-2:] != RESTING or row in either})
        for form in ("general", "fk_pk", "fk_pk_units"):
            for pre_image in ("undo", "sql"):
                look_ups, done = interval.look_ups(Decision(form, pre_image))
                read = look_ups.reduce(interval.tables[name], wanted)
                undo = pre_image == "undo"
                where = f"{name} by {wanted} in ({interval.a}, {interval.b}], {form}, {pre_image}, {read}"
                assert interval.versions(name, read, wanted, undo) == expected, f"{where}\n{history.script()}"
                if undo:
                    reads = read, look_ups.reduce(interval.tables[name], other)
                    assert interval.gathered(name, reads, (wanted, other)) == gathered, where
                saved["units"] += done[0].in_changes
                saved["keys"] += done[0].without_rows
                assert form != "general" or read == wanted


def test_what_is_left_out_makes_no_difference() -> None:
    saved: Counter[str] = Counter()

    @budget("CQ_ORACLE_PLAN_EXAMPLES", 25)
    @given(history=shop_histories("ENFORCED", queries=0, transactions=(3, 8)))
    def tried(history: History) -> None:
        check(history, history.seed, saved)

    tried()
    assert saved["units"] > 100
    assert saved["keys"] > 100


class _SmallKeys:
    """In the place of a set of keys: all that have nothing but numbers below 10."""

    def __len__(self) -> int:
        return 10

    def holds(self, rows: pa.Table) -> Any:
        return np.all([np.asarray(column) < 10 for column in rows.columns], axis=0)


@pytest.mark.parametrize("bug", ["absent", "touched"])
def test_a_look_up_that_leaves_out_too_much_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of parents that were changed in place; keys that did not change at all."""
    if bug == "absent":
        monkeypatch.setattr(UncompactedLog, "absent", lambda log, after: log.touched)
    else:
        monkeypatch.setattr(UncompactedLog, "touched", _SmallKeys())

    @budget("CQ_ORACLE_PLAN_EXAMPLES", 25)
    @given(history=shop_histories("ENFORCED", queries=0, transactions=(3, 8)))
    def tried(history: History) -> None:
        check(history, history.seed, Counter())

    with pytest.raises(AssertionError, match=r"(lines|orders|customers) by"):
        tried()
