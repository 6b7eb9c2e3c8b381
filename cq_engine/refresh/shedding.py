"""Load shedding: a query that stands before slower ones leaves rows out (Polyzotis et al., ICDE 2007, section 3.3).

A query `WITH (shed = '100000')` selects rows of one table by its key, and others read its result. Where more change rows than that wait for one of
these, rows that are new are left out. What is left out is no matter of a moment: a row that was left out is not in the result until it is
deleted and comes anew, and later changes of it are left out with it. So the deltas are those of a result that is there, the
table that is kept for the readers: by it is known which rows a change may be about. The paper leaves open which are dropped; here it is
a random sample of the new rows of a refresh, all with the same chance.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    SEQUENCE,
    UPDATE_PREIMAGE,
)
from cq_engine.catalog.graph import readers
from cq_engine.catalog.groups import owner
from cq_engine.catalog.model import ContinuousQuery, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.core.options import SHED, option_value, parse_shed
from cq_engine.spark.sql import quote
from cq_engine.storage.rows import identity_columns, identity_keys

__all__ = ["Shed", "room_for", "shed_frame", "shed_rows"]

Mask = npt.NDArray[np.bool_]
_CHANCES = 2**32


@dataclass(frozen=True)
class Shed:
    """What a refresh has left out.

    Attributes:
        new: rows that were new.
        left_out: those of them that were left out.
        later: changes of rows that were left out before, which were left out as well.
        room: how many change rows there was room for; None where nothing is left out.
    """

    new: int = 0
    left_out: int = 0
    later: int = 0
    room: int | None = None

    def __str__(self) -> str:
        room = "" if self.room is None else f", with room for {self.room} change rows"
        return f"{self.left_out} of {self.new} new rows left out{room}; {self.later} changes of rows that were left out before"


def room_for(catalog: Catalog, query: ContinuousQuery) -> int | None:
    """How many change rows may come until as many wait for the slowest reader as the query allows; None where any number may.

    Queries that are paused or have failed do not count: they hold nobody up.
    """
    most, state = parse_shed(option_value(SHED, dict(query.options))), catalog.state
    statuses = [catalog.status(owner(state, reader.name)) for reader in readers(state, query.name)]
    behind = [status.position for status in statuses if status.state == "ACTIVE"]
    if most is None or not behind:
        return None
    position = catalog.status(query.name).position
    waiting = sum(each.rows for each in catalog.changes(query.result.id, min(behind) + 1, position))
    return max(0, most - waiting)


def shed_rows(
    log: pa.Table,
    relation: VersionedTable,
    room: int | None,
    look_up: Callable[[pa.Table], pa.Table],
    seed: int,
) -> tuple[pa.Table, Shed]:
    """The rows of a delta without those that are left out.

    Args:
        log: the delta's rows, in any order: the result's columns, change type, version and sequence.
        relation: the table that is kept of the result.
        room: see `room_for`.
        look_up: gives the rows of the table before the interval with these keys, which may stand several times.
        seed: of the choice among new rows.
    """
    is_new = np.asarray(pc.equal(log.column(CHANGE_TYPE), INSERT), np.bool_)
    new = int(is_new.sum())
    if new == log.num_rows:
        chosen = _chosen(new, room, seed)
        return log.filter(pa.array(chosen)), Shed(new, new - int(chosen.sum()), 0, room)
    order = [(COMMIT_VERSION, "ascending"), (SEQUENCE, "ascending"), (CHANGE_TYPE, "descending")]
    log = log.take(pc.sort_indices(log.select([name for name, _ in order]), sort_keys=order))
    kinds = log.column(CHANGE_TYPE).to_pylist()
    identity = identity_columns(relation)
    keys = identity_keys(log, identity)
    names = list(relation.identity)
    changed = log.filter(pc.not_equal(log.column(CHANGE_TYPE), INSERT)).select(names)
    known = set(identity_keys(look_up(changed), identity))
    rest = (
        None if room is None else max(0, room - sum(k in known for k, t in zip(keys, kinds) if t != INSERT))
    )
    kept = _follow(keys, kinds, known, iter(_chosen(new, rest, seed).tolist()))
    left = [kind for kind, each in zip(kinds, kept) if not each]
    later = sum(kind not in (INSERT, UPDATE_PREIMAGE) for kind in left)
    return log.filter(pa.array(kept)), Shed(new, left.count(INSERT), later, room)


def _chosen(new: int, room: int | None, seed: int) -> Mask:
    """Which of so many new rows are taken, if only as many as there is room for."""
    chosen = np.ones(new, np.bool_)
    if room is not None and new > room:
        chosen[np.random.default_rng(seed).permutation(new)[room:]] = False
    return chosen


def _follow(
    keys: list[Hashable], kinds: list[str], known: set[Hashable], chosen: Iterator[bool]
) -> list[bool]:
    """Which rows of a delta, in order, are about rows that are there; `chosen` says it of the new ones."""
    there: dict[Hashable, bool] = {}
    kept = []
    for key, kind in zip(keys, kinds):
        if kind == INSERT:
            there[key] = next(chosen)
        kept.append(there.setdefault(key, key in known))
        if kind == DELETE:
            there[key] = False
    return kept


def shed_frame(
    log: DataFrame, relation: VersionedTable, image: DataFrame, room: int | None, seed: int
) -> tuple[DataFrame, Callable[[DataFrame], Shed]]:
    """The same with Spark, where each new row has the chance that takes about as many as there is room for.

    `image` are the rows of the table before the interval. Also given is what says how many were left out, of the rows that are kept.
    """
    names = [quote(name) for name in relation.identity]
    new, others = log.agg(
        f.count_if(f.col(CHANGE_TYPE) == INSERT), f.count_if(f.col(CHANGE_TYPE) != INSERT)
    ).collect()[0]
    share = 1.0 if room is None or not new else min(1.0, max(0, room - others) / new)
    number = f.pmod(f.xxhash64(*names, COMMIT_VERSION, f.lit(seed)), f.lit(_CHANCES))
    known = image.select(*names).withColumn("_known", f.lit(True)).alias("known")
    same = [f.col(f"log.{name}").eqNullSafe(f.col(f"known.{name}")) for name in names]
    steps = Window.partitionBy(*names).orderBy(COMMIT_VERSION, SEQUENCE)
    before = steps.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_new = f.col(CHANGE_TYPE) == INSERT
    marked = (
        log.alias("log")
        .join(known, same, "left")
        .select("log.*", "known._known")
        .withColumn("_chosen", f.when(is_new, number < f.lit(round(share * _CHANCES))))
    )
    there = f.coalesce(f.last("_chosen", ignorenulls=True).over(before), f.col("_known"), f.lit(False))
    kept = marked.withColumn("_there", there).where("_there").drop("_there", "_chosen", "_known")
    gone = others - log.where(f.col(CHANGE_TYPE) == UPDATE_PREIMAGE).count()

    def counted(rows: DataFrame) -> Shed:
        taken, changes = rows.agg(
            f.count_if(is_new),
            f.count_if(~is_new & (f.col(CHANGE_TYPE) != UPDATE_PREIMAGE)),
        ).collect()[0]
        return Shed(new, new - taken, gone - changes, room)

    return kept, counted
