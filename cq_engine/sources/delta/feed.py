"""USING LOG and USING COPY over Delta Lake: each version of the table as a commit, by its change data feed; where that does
not reach, two versions are compared."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.sources.delta.table import changes, feed_is_on, image, open_table
from cq_engine.sources.methods.base import Method, Place, as_spelled
from cq_engine.sources.options import option
from cq_engine.sources.tick import COMMITTED, DELETE, INSERT, OPERATION, TRANSACTION, UPSERT, Tick
from cq_engine.storage.rows import conform

__all__ = ["DeltaFeed"]

_log = logging.getLogger(__name__)

_RANKS = {"delete": 0, "update_preimage": 0, "update_postimage": 1, "insert": 1}
"""Within a version a key is given up before it is taken again."""


class DeltaFeed(Method):
    """Positions are the id of the Delta table and the version up to which it was read."""

    needs_key = False

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        found = open_table(declared, capture.relation)
        capture = as_spelled(
            capture, (field.name for field in found.schema().fields), "the Delta table", place
        )
        notes = []
        if capture.method.kind == "COPY" and table.primary_key is None:
            raise AnalysisError(
                f"table {table.name} has no primary key",
                detail="COPY compares versions of the Delta table, whose rows are known again by it",
                hint="give the table a primary key, or write USING LOG",
            )
        if capture.method.kind == "LOG" and not feed_is_on(found):
            notes.append("its change data feed is off, so that every new version is compared with the table")
            if table.primary_key is None:
                raise AnalysisError(
                    f"table {table.name} has no primary key, and the Delta table no change data feed",
                    hint="give the table a primary key, or set delta.enableChangeDataFeed at the source",
                )
        return capture, notes

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        capture, position = tick.capture, tick.position
        now = open_table(declared, capture.relation)
        reached = {"id": str(now.metadata().id), "version": now.version()}
        if position is None:
            self._begin(tick, declared, now, reached)
        elif position["id"] != reached["id"] or position["version"] > reached["version"]:
            _log.warning(
                "capture %s: the Delta table is another one, or has gone back to version %d; all of it is compared",
                capture.name, reached["version"],
            )  # fmt: skip
            self._compare(tick, declared, now, reached)
        elif position["version"] == reached["version"]:
            tick.move(reached)
        elif not self._follow(tick, declared, now, position["version"], reached):
            self._compare(tick, declared, now, reached)

    def _begin(
        self, tick: Tick, declared: DeclaredSource, now: DeltaTable, reached: Mapping[str, Any]
    ) -> None:
        if tick.capture.method.kind == "LOG" and option(tick.capture, "initial") == "none":
            tick.move(reached)
        elif tick.key:
            tick.replace(image(declared, now, tick.capture), reached)
        else:
            tick.load(image(declared, now, tick.capture), reached)

    def _compare(
        self, tick: Tick, declared: DeclaredSource, now: DeltaTable, reached: Mapping[str, Any]
    ) -> None:
        if not tick.key:
            raise SourceError(
                f"capture {tick.capture.name} cannot follow the Delta table: its change data feed does not reach back",
                detail=f"versions cannot be compared, for table {tick.capture.table} has no primary key",
                hint="create the table anew with a primary key",
            )
        tick.replace(image(declared, now, tick.capture), reached)

    def _follow(
        self, tick: Tick, declared: DeclaredSource, now: DeltaTable, after: int, reached: Mapping[str, Any]
    ) -> bool:
        """By the feed; False where it is not asked for, does not have these versions, or has more than the driver takes."""
        if tick.capture.method.kind == "COPY" or not feed_is_on(now):
            return False
        batches, most = [], tick.services.limits.apply_rows
        try:
            for batch in changes(declared, now, tick.capture, after + 1, reached["version"]):
                batches.append(batch)
                if tick.key and sum(map(len, batches)) > most:
                    return False
        except SourceError as error:
            if not tick.key:
                raise
            _log.warning("capture %s: %s; versions are compared", tick.capture.name, error.message)
            return False
        if not batches:
            tick.move(reached)
            return True
        rows = pa.Table.from_batches(batches)
        tick.read += rows.num_rows
        tick.apply({tick.table.name: _changes(tick, rows)}, reached, transactional=True)
        return True


def _changes(tick: Tick, rows: pa.Table) -> pa.Table:
    """The feed's rows as changes of our table, in the order in which they are to be applied."""
    kinds = rows.column("_change_type").cast(pa.string())
    given = conform(rows.select([column.name for column in tick.columns]), tick.columns)
    places = pc.index_in(kinds, pa.array(list(_RANKS)))
    ranks = pa.array(list(_RANKS.values())).take(places.combine_chunks())
    words = pa.array([DELETE, UPSERT if tick.key else INSERT])
    if not tick.key and pc.any(pc.equal(ranks, 0)).as_py():
        raise SourceError(
            f"the Delta table of capture {tick.capture.name} has deleted or updated rows",
            detail=f"table {tick.capture.table} has no primary key by which they could be found",
            hint="create the table anew with a primary key",
        )
    given = given.append_column(OPERATION, words.take(ranks))
    given = given.append_column(TRANSACTION, rows.column("_commit_version").cast(pa.int64()))
    given = given.append_column(
        COMMITTED, rows.column("_commit_timestamp").cast(pa.timestamp("us", tz="UTC"))
    )
    order = pc.sort_indices(
        given.append_column("_rank", ranks), [(TRANSACTION, "ascending"), ("_rank", "ascending")]
    )
    return given.take(order)
