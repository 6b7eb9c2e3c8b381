"""What must hold in a warehouse of the trials, beside the model of it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from cq_engine.api.engine import Engine
from cq_engine.catalog import schema
from cq_engine.catalog.store import Catalog
from tests.catalog.test_interrupts import check_memory
from tests.faults.model import Model
from tests.faults.warehouse import LIMITS, Row, all_rows, change_rows, history, image


class Checks:
    """The comparison with the model: a part of `World`, which has the warehouse."""

    engine: Engine
    model: Model
    warehouse: Path
    calls: Path
    _logs: dict[Path, set[str]]

    def check(self) -> None:
        """The warehouse, opened again, is what the model says."""
        catalog, model = self.engine.catalog, self.model
        tables = catalog.state.tables
        assert catalog.newest_version == model.newest
        for name in ("account", "entry"):
            assert image(catalog, tables[name].storage, catalog.newest_version) == model.rows[name], name
            floor = catalog.floor(tables[name].storage.id)
            kept = {v: Counter(rows) for v, rows in history(catalog, tables[name].storage, floor).items()}
            wanted = {v: Counter(c[name]) for v, c in model.commits.items() if name in c and v > floor}
            assert kept == wanted, f"the history of {name}"
        self._check_log(catalog)
        self._check_table(catalog)
        self._check_calls(catalog)
        self._check_files(catalog)
        check_memory(catalog)

    def _check_log(self, catalog: Catalog) -> None:
        query = catalog.state.queries["totals"]
        position, floor = catalog.status("totals").position, catalog.floor(query.result.id)
        assert catalog.status("totals").state == "ACTIVE"
        rows = Counter(
            (r["_commit_version"], r["_sequence"], r["_change_type"], r["account"], r["total"])
            for r in change_rows(catalog, query.result, floor)
        )
        wanted: Counter[Row] = Counter()
        for version, mark, sequence, new, old in self.model.deltas:
            if floor < version <= position:
                if old is not None:
                    wanted[(version, sequence, "delete" if mark == "D" else "update_preimage", *old)] += 1
                if new is not None:
                    wanted[(version, sequence, "insert" if mark == "I" else "update_postimage", *new)] += 1
        assert rows == wanted, "the delta log"
        records = catalog.refreshes("totals", 1 << 30)[::-1]
        ends = [0, *(record.to_version for record in records)]
        assert [record.from_version for record in records] == ends[:-1]
        assert ends[-1] == position

    def _check_table(self, catalog: Catalog) -> None:
        """Exactly once, in order."""
        cursor = catalog.cursor("totals", "table:totals_log")
        assert cursor is not None
        served = [d for d in self.model.deltas if d[0] <= cursor.version]
        wanted = [
            (*(new or old or ()), mark, old and old[1], version) for version, mark, _, new, old in served
        ]
        got = all_rows(catalog, catalog.state.tables["totals_log"].storage)
        assert len({row[0] for row in got}) == len(got), "a row id was given twice"
        assert Counter(row[1:] for row in got) == Counter(wanted), "the table destination"
        assert all(a[5] <= b[5] for a, b in pairwise(got)), "the table destination is not in order"

    def _check_calls(self, catalog: Catalog) -> None:
        """At least once, in order; only the batch whose cursor was not durable comes again."""
        cursor = catalog.cursor("totals", "callback:calls")
        assert cursor is not None
        lines = [json.loads(line)["deltas"] for line in self.calls.read_text().splitlines()]
        places = [(batch[0][0], batch[0][2]) for batch in lines]
        assert places == sorted(places), "a batch came before one that is ahead of it"
        once = [batch for n, batch in enumerate(lines) if n == 0 or batch != lines[n - 1]]
        assert len(set(places)) == len(once), "a batch came again with other content"
        got = [delta for batch in once for delta in batch]
        all_of_them = json.loads(json.dumps(self.model.deltas))
        assert got == all_of_them[: len(got)], "what the callback has got"
        end = (cursor.version, cursor.sequence)
        taken = [
            d for d in all_of_them if d[0] < end[0] or (d[0] == end[0] and (not end[1] or d[2] <= end[1]))
        ]
        assert len(taken) <= len(got), "the cursor stands behind what nobody has got"
        assert len(got) - len(taken) <= LIMITS.batch_deltas, "more than one batch would come again"

    def _has_attempts(self) -> bool:
        with self.engine.catalog._reading() as connection:
            return bool(connection.execute(schema.attempts.select()).all())

    def _check_files(self, catalog: Catalog) -> None:
        assert self._spare() == set(), f"files that nobody refers to: {self._spare()}"
        with catalog._reading() as connection:
            assert connection.execute(schema.attempts.select()).all() == []
            assert connection.execute(schema.doomed.select()).all() == []

    def _spare(self) -> set[str]:
        """Data files that neither the catalog nor a Delta table names, but for those that may be left."""
        view = self.engine.catalog.view
        named = {path for layout in view.layouts.values() for path in layout.files}
        named |= {f.path for layout in view.layouts.values() for c in layout.changes for f in c.files}
        there = {p.relative_to(self.warehouse).as_posix() for p in self.warehouse.rglob("*.parquet*")}
        there = {p for p in there if not any(each in p for each in ("_delta_log", "/inserts-", "/merged-"))}
        assert named - there == set(), f"files are missing: {named - there}"
        return there - named - self._published()

    def _published(self) -> set[str]:
        """What a Delta table has been told of, relative to the warehouse: its history stays when the engine's goes."""
        for log in self.warehouse.glob("*/*/_delta_log/*.json"):
            if log not in self._logs:
                try:
                    actions = [json.loads(line) for line in log.read_text().splitlines()]
                except ValueError:  # torn: it goes with the next publication
                    continue
                root = log.parent.parent.relative_to(self.warehouse)
                self._logs[log] = {f"{root}/{a['add']['path']}" for a in actions if "add" in a}
        return set().union(*self._logs.values())
