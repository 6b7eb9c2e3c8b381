"""A small warehouse whose every part works without Spark, what is done in it, and how its rows are read past the engine.

Two base tables are filled, and a query totals the amounts of `entry` by account, for a table and a callback. What the
defining query gives is computed here, in Spark's place, so that a trial costs a twentieth of a second. Everything that
becomes durable is the engine's own: files, transactions, the delta log, cursors, publishing, merging, vacuum.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.catalog import apply, schema
from cq_engine.catalog.model import ContinuousQuery, OutputColumn, QueryStatus, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError
from cq_engine.core.limits import Limits
from cq_engine.destinations import DeltaBatch
from cq_engine.grammar import DestinationRef, OnDemand
from cq_engine.launch import class_archive, prepare
from cq_engine.refresh.delta_rows import Summary
from cq_engine.refresh.executors import Outcome
from cq_engine.refresh.interval import Interval
from cq_engine.refresh.refresh import NoChange, Refresher
from cq_engine.storage.rows import change_columns, conform

Row = tuple[Any, ...]
Rows = dict[Any, Row]
Delta = tuple[int, str, int, Row | None, Row | None]
"""Version, marker, sequence, new row, old row."""

LIMITS = Limits(
    inline_bytes=1_500, table_inline_bytes=300, batch_deltas=2, checkpoint_commits=3, published_files=4, compact_rows=5, row_ids=7,
    grace_seconds=0.0, heartbeat_seconds=1000.0, column_copy_common=1_000_000,
    change_files=1_000, look_up_files=1_000,
)  # fmt: skip
"""Small ones, so that a few rows go every way: inline and in files, in several batches, with checkpoints."""

DEFINITIONS = (
    "CREATE TABLE account (id INT PRIMARY KEY, owner STRING)",
    "CREATE TABLE entry (id INT PRIMARY KEY, account INT, amount INT, note STRING)",
    "CREATE TABLE totals_log (account INT, total BIGINT, mark STRING, was BIGINT, version BIGINT)",
)
COLUMNS = {"account": ("id", "owner"), "entry": ("id", "account", "amount", "note")}


assert "_run_choices" in vars(Refresher), "what Totals does in its place"


class NoSpark:
    """What the engine is given for a session. Nothing asks more of it."""

    def __init__(self) -> None:
        self.conf = SimpleNamespace(get=lambda *_: None)
        asked = ("getLocalProperty", "addJobTag", "removeJobTag", "cancelJobsWithTag")
        self.sparkContext = SimpleNamespace(**dict.fromkeys(asked, lambda *_: None))


class Totals(Refresher):
    """Computes the delta of the only query in Spark's place; small ones in memory, every third in a file."""

    def _run_choices(
        self, query: ContinuousQuery, _compiled: Any, interval: Interval, _part: Any
    ) -> Outcome | NoChange:
        catalog = self.services.catalog
        entry = catalog.state.tables["entry"].storage
        deltas: list[Delta] = []
        images = dict(image(catalog, entry, interval.a))
        before = totals(images)
        changed = history(catalog, entry, interval.a)
        for version in sorted(v for v in changed if v <= interval.b):
            replay(images, changed[version])
            now = totals(images)
            deltas += difference(version, before, now)
            before = now
        if not deltas:
            return NoChange.NO_EFFECT
        rows = conform(log_rows(deltas, self.services.now()), change_columns(query.result))
        count = [sum(d[1] == mark for d in deltas) for mark in "IDU"]
        summary = Summary(len(deltas), *count, 0, deltas[0][0], deltas[-1][0])
        if interval.b % 3:
            return Outcome(rows, (), summary)
        attempt = catalog.attempt("refresh")
        times = catalog.timestamps(interval.a, interval.b)
        stamps = [times[d] for d in rows.column("_commit_version").to_pylist()]
        timed = rows.append_column("_commit_timestamp", pa.array(stamps, pa.timestamp("us", tz="UTC")))
        path = f"{attempt.directory(query.result, 'log')}/part-0.parquet"
        try:
            file = write_parquet(timed, path, catalog.store, ["account", "_commit_version"])
        except BaseException:
            attempt.abandon()
            raise
        return Outcome([file], (), summary, attempt=attempt)


# ---------------------------------------------------------------- the query, and rows past the engine


def totals(entries: Mapping[Any, Row]) -> Rows:
    """SELECT account, sum(amount) AS total FROM entry GROUP BY account HAVING sum(amount) > 10."""
    found: dict[int, int] = defaultdict(int)
    for _, account, amount, _ in entries.values():
        found[account] += amount
    return {account: (account, total) for account, total in found.items() if total > 10}


def difference(version: int, before: Rows, now: Rows) -> list[Delta]:
    """The deltas of one version, numbered in the order of their keys."""
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    found = []
    for number, key in enumerate(changed, 1):
        new, old = now.get(key), before.get(key)
        found.append((version, "D" if new is None else "I" if old is None else "U", number, new, old))
    return found


def log_rows(deltas: Sequence[Delta], moment: Any) -> pa.Table:
    """Change rows of the delta log."""
    kinds = {"I": ["insert"], "D": ["delete"], "U": ["update_preimage", "update_postimage"]}
    rows: dict[str, list[Any]] = defaultdict(list)
    for version, mark, sequence, new, old in deltas:
        for kind in kinds[mark]:
            shown = old if kind in ("delete", "update_preimage") else new
            assert shown is not None
            values = (*shown, kind, version, sequence, moment)
            names = ("account", "total", "_change_type", "_commit_version", "_sequence", "_refresh_time")
            for name, value in zip(names, values):
                rows[name].append(value)
    types = {"account": pa.int32(), "total": pa.int64(), "_change_type": pa.string(), "_commit_version": pa.int64(),
             "_sequence": pa.int64(), "_refresh_time": pa.timestamp("us", tz="UTC")}  # fmt: skip
    return pa.table({name: pa.array(rows[name], kind) for name, kind in types.items()})


def _read(catalog: Catalog, path: str) -> list[dict[str, Any]]:
    file = Path(catalog.warehouse, path)
    found: list[dict[str, Any]] = pq.read_table(file, partitioning=None, use_threads=False).to_pylist()
    return found


def change_rows(catalog: Catalog, table: VersionedTable, after: int) -> list[dict[str, Any]]:
    """The change rows after a version, as the catalog's files and inline rows have them, in the order of versions."""
    found = []
    for each in catalog.changes(table.id, after + 1, catalog.newest_version):
        if each.inline_id is not None:
            rows = catalog.inline(each).to_pylist()
        else:
            rows = [row for file in each.files for row in _read(catalog, file.path)]
        for row in rows:
            more = {"_change_type": "insert", "_commit_version": each.low} if each.insert_only else {}
            found.append({**row, **more})
    return sorted((r for r in found if r["_commit_version"] > after), key=lambda r: r["_commit_version"])


def history(catalog: Catalog, table: VersionedTable, after: int) -> dict[int, list[tuple[str, Row]]]:
    """By version after `after`, the change rows: kind and the table's columns."""
    found: dict[int, list[tuple[str, Row]]] = defaultdict(list)
    for row in change_rows(catalog, table, after):
        values = tuple(row[c.name] for c in table.columns)
        found[row["_commit_version"]].append((row["_change_type"], values))
    return found


def replay(rows: Rows, changes: Sequence[tuple[str, Row]]) -> None:
    """Makes the changes of one commit; asserts that they fit."""
    for kind, row in changes:
        if kind in ("delete", "update_preimage"):
            assert rows.pop(row[0]) == row
    for kind, row in changes:
        if kind in ("insert", "update_postimage"):
            assert row[0] not in rows, f"{row} twice"
            rows[row[0]] = row


def image(catalog: Catalog, table: VersionedTable, at: int) -> Rows:
    """The rows of a table with a primary key after a version: its snapshot, and the changes since."""
    layout = catalog.layout(table.id, at)
    names = [c.name for c in table.columns]
    rows = {}
    for file in layout.snapshot:
        for row in _read(catalog, file.path):
            assert row[names[0]] not in rows
            rows[row[names[0]]] = tuple(row[name] for name in names)
    for version, changes in sorted(history(catalog, table, layout.base).items()):
        if version <= at:
            replay(rows, changes)
    return rows


def all_rows(catalog: Catalog, table: VersionedTable) -> list[Row]:
    """The rows of a table that is only appended to, each with its hidden identity first, in the order of that."""
    layout = catalog.layout(table.id, catalog.newest_version)
    found = [row for file in layout.snapshot for row in _read(catalog, file.path)]
    found += change_rows(catalog, table, layout.base)
    names = ["_row_id", *(c.name for c in table.columns)]
    return sorted(tuple(row[name] for name in names) for row in found)


# ---------------------------------------------------------------- opening


def open_engine(
    warehouse: Path, calls: Path, url: str | None, limits: Limits = LIMITS, *, duties: bool | None = None
) -> Engine:
    """The warehouse, with the callback, which writes what it gets to `calls`, and with `Totals` in Spark's place."""
    engine = cq_engine.connect(
        warehouse, catalog=url, spark=NoSpark(), scheduler=False, limits=limits,  # type: ignore[arg-type]
        conf={"maintenance": "manual"}, duties=duties,
    )  # fmt: skip
    if "totals" not in engine.catalog.state.queries:
        _define(engine)
    engine.queries.refresher = engine.queries.refreshes.refresher = Totals(engine.services)
    compiled: Any = SimpleNamespace(node=None, sources={"entry": engine.catalog.state.tables["entry"]})
    engine.queries.registry.remember(engine.catalog.state.queries["totals"], compiled)

    @engine.callback("calls")
    def _note(batch: DeltaBatch) -> None:
        deltas = [(d.commit_version, d.marker, d.sequence, d.new, d.old) for d in batch]
        with calls.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"deltas": deltas, "last": batch.last, "by": os.getpid()}) + "\n")

    return engine


def _define(engine: Engine) -> None:
    """What is not there yet: a process may have died on the way."""
    for statement in DEFINITIONS:
        if statement.split()[2] not in engine.catalog.state.tables:
            engine.execute(statement)
    catalog = engine.catalog
    state, number = apply.allocate_id(catalog.state)
    state, log = apply.allocate_id(state)
    columns = (Column("account", "int"), Column("total", "bigint"))
    query = ContinuousQuery(
        name="totals",
        id=number,
        statement="CREATE CONTINUOUS QUERY totals ON DEMAND AS SELECT account, sum(amount) AS total FROM entry",
        query="SELECT account, sum(amount) AS total FROM entry",
        result=VersionedTable(log, "delta", "totals", columns, ("account",)),
        key=("account",),
        mode="TRANSACTIONAL",
        markers=("I", "D", "U"),
        when=OnDemand(),
        destinations=(DestinationRef("totals_log", "TABLE"), DestinationRef("calls", "CALLBACK")),
        sources=("entry",),
        outputs=(
            OutputColumn("account", "int", index=0),
            OutputColumn("total", "bigint", index=1),
            OutputColumn("mark", "string", "marker"),
            OutputColumn("was", "bigint", "old", 1),
            OutputColumn("version", "bigint", "commit_version"),
        ),
        width=2,
    )
    with catalog.write() as unit:
        unit.set_state(apply.add_query(state, query))
        unit.set_status("totals", QueryStatus(0))
        engine.delivery.begin(unit, query, 0)


# ---------------------------------------------------------------- what is done

Step = tuple[str, Any]
"""The name of what is done, and what it is told. A step is whole, or nothing of it is there."""
Change = tuple[str, Row]
"""Of a stream: I, U or D, and the row."""


def do(engine: Engine, step: Step) -> int | None:
    """Does it. The commit version that a transaction knows of, though it was interrupted."""
    name, told = step
    return _STEPS[name](engine, told)


def _insert(engine: Engine, told: Mapping[str, Sequence[Row]]) -> int | None:
    handle = None
    try:
        with engine.transaction() as handle:
            for table, rows in told.items():
                handle.insert(table, _table(table, rows))
    except BaseException as error:
        error.known = handle.commit_version if handle else None  # type: ignore[attr-defined]
        raise
    return handle.commit_version


_TYPES = {
    "id": pa.int32(),
    "account": pa.int32(),
    "amount": pa.int32(),
    "owner": pa.string(),
    "note": pa.string(),
}


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    columns = COLUMNS[name]
    return pa.table({c: pa.array([row[n] for row in rows], _TYPES[c]) for n, c in enumerate(columns)})


def _stream(engine: Engine, told: Sequence[Sequence[Change]]) -> None:
    """Several transactions of another system, in one call."""
    flat = [(number, *change) for number, each in enumerate(told) for change in each]
    rows = _table("entry", [row for _, _, row in flat])
    rows = rows.append_column("txn", pa.array([number for number, _, _ in flat]))
    rows = rows.append_column("op", pa.array([op for _, op, _ in flat]))
    engine.apply_changes({"entry": rows}, transaction="txn")


def _refresh(engine: Engine, _: Any) -> None:
    engine.refresh("totals")


def _publish(engine: Engine, _: Any) -> None:
    engine.publish()


def _merge(engine: Engine, name: str) -> None:
    engine.compactor.merge(engine.catalog.state.tables[name].storage)


def _vacuum(engine: Engine, _: Any) -> None:
    engine.vacuum(retain="0 hours")


def _define_table(engine: Engine, name: str) -> None:
    engine.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v STRING)")


def _drop_table(engine: Engine, name: str) -> None:
    engine.execute(f"DROP TABLE {name}")


def _copies(engine: Engine, _: Any) -> None:
    """Copies of columns of the files of `entry`, for look-ups, as a maintenance thread makes them."""
    indexed = engine.reader.look_ups.indexed
    table = engine.catalog.state.tables["entry"].storage
    for file in engine.catalog.layout(table.id, engine.catalog.newest_version).snapshot:
        path = str(Path(engine.catalog.warehouse, file.path))
        columns = [c for c in table.columns if c.name == "id"]
        indexed.note_decoded(path, table.id, file.rows, file.rows, columns, ["id"])
    indexed.fill(1 << 30)


def _archive(engine: Engine, told: str) -> None:
    """The archive of Spark's classes; what Java writes comes from here."""
    path = Path(told)
    path.parent.mkdir(parents=True, exist_ok=True)
    run = prepare._run_limited

    def write(command: list[str]) -> str:
        name = next(part.split("=", 1)[1] for part in command[-1].split() if f"{path.stem}-" in part)
        Path(name.strip("'\"")).write_bytes(b"archive" * 200_000)
        return ""

    try:
        prepare._run_limited = write
        prepare._train(path)
    except OSError as error:
        raise CQError("as `prepare.make` says it") from error
    finally:
        prepare._run_limited = run
    class_archive.clean(path.parent, path)


_STEPS: dict[str, Callable[[Engine, Any], int | None]] = {
    "insert": _insert,
    "stream": _stream,
    "refresh": _refresh,
    "publish": _publish,
    "merge": _merge,
    "vacuum": _vacuum,
    "define": _define_table,
    "drop": _drop_table,
    "copies": _copies,
    "archive": _archive,
}


def beside(engine: Engine, step: Step) -> Callable[[], None]:
    """What another thread does at a fault point: begins the step, and is waited for a little; gives what waits for its
    end."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            do(engine, step)
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.03)

    def end() -> None:
        thread.join(60)
        assert not thread.is_alive(), "the threads wait for each other"
        if failed:
            raise failed[0]

    return end


def make_older(catalog: Catalog, version: int) -> None:
    """Takes from the catalog what a schema of an earlier version did not have, and gives it what that had."""
    with catalog._database.writing() as connection:
        if version == 1:
            schema.doomed.drop(connection)
        schema.directories.drop(connection)
        connection.execute(schema.processes.delete())  # it stays, so that its numbers are not given again
        for table in (schema.journal, schema.callbacks, schema.requests):
            table.drop(connection, checkfirst=True)
        for change in (
            "cq_attempts DROP COLUMN process",
            "cq_lease DROP COLUMN process",
            "cq_lease ADD COLUMN holder TEXT NOT NULL DEFAULT ''",
            "cq_lease ADD COLUMN heartbeat BIGINT NOT NULL DEFAULT 0",
            "cq_lease ADD COLUMN generation BIGINT NOT NULL DEFAULT 7",
        ):
            connection.exec_driver_sql(f"ALTER TABLE {change}")
        known = schema.meta.c.key
        connection.execute(schema.meta.update().where(known == "schema_version").values(value=str(version)))
