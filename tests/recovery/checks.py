"""What must hold in a warehouse after a crash, when its successor has done everything."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from cq_engine.api.engine import Engine
from cq_engine.catalog import schema
from cq_engine.catalog.attempts import root_of
from cq_engine.destinations import Delta
from tests.recovery.story import OVER, QUERIES, STEPS

Row = tuple[Any, ...]


def check_all(engine: Engine, warehouse: Path, calls: Path, *, look_at: int) -> int:
    """Everything; `look_at` chooses the version whose images are also read by VERSION AS OF.

    Returns how many batches the callback got twice.
    """
    steps = [step for (step,) in engine.execute("SELECT step FROM progress").fetchall()]
    assert sorted(steps) == [0, 2, 3, 5, 6, 8, 10, 12]
    assert max(steps) == len(STEPS) - 1
    tables = ("progress", "account", "entry", "rich_log", "owned_log")
    logs = {name: published(engine, warehouse, name) for name in tables}
    check_images(engine, logs, look_at)
    for name in QUERIES:
        deltas = list(engine.deltas(name))
        assert len(deltas) > 5
        check_law(engine, name, deltas, logs)
        check_table(name, deltas, logs[f"{name}_log"])
        published(engine, warehouse, name)
    check_merged(engine, logs, look_at)
    for name in OVER:
        check_law(engine, name, list(engine.deltas(name)), logs)
    check_garbage(engine, warehouse)
    return check_calls("owned", list(engine.deltas("owned")), calls)


# ---------------------------------------------------------------- the delta law


def check_law(engine: Engine, name: str, deltas: list[Delta], logs: dict[str, pa.Table]) -> None:
    """The deltas, applied commit by commit, give the result of the defining query at every commit."""
    check_order([(d.commit_version, d.sequence) for d in deltas])
    by_version: dict[int, list[Delta]] = {}
    for delta in deltas:
        by_version.setdefault(delta.commit_version, []).append(delta)
    changed = {v for table in ("account", "entry") for v in logs[table]["_commit_version"].to_pylist()}
    assert set(by_version) <= changed
    assert engine.describe(name).position >= max(changed)
    found: dict[Row, Row] = {}
    with duckdb.connect() as oracle:
        for version in sorted(changed):
            apply(found, by_version.get(version, []))
            for table in ("account", "entry"):
                oracle.register(table, image(logs[table], version))
            wanted = Counter(oracle.sql({**QUERIES, **OVER}[name]).fetchall())
            assert Counter(found.values()) == wanted, f"{name} at version {version}"


def apply(found: dict[Row, Row], deltas: Iterable[Delta]) -> None:
    """Replays the deltas of one commit: at most one per key, and none that changes nothing."""
    touched: set[Row] = set()
    for delta in deltas:
        assert delta.key is not None
        assert delta.key not in touched, f"two deltas of {delta.key} at version {delta.commit_version}"
        touched.add(delta.key)
        assert delta.old == found.pop(delta.key, None)
        assert delta.old != delta.new
        assert delta.marker == ("D" if delta.new is None else "I" if delta.old is None else "U")
        if delta.new is not None:
            found[delta.key] = delta.new


def check_order(places: list[tuple[int, int]]) -> None:
    assert all(earlier < later for earlier, later in pairwise(places))


# ---------------------------------------------------------------- destinations


def check_table(name: str, deltas: list[Delta], log: pa.Table) -> None:
    """The table holds every delta once, and received them in the order of the commits."""
    wanted = Counter(output(name, delta) for delta in deltas)
    columns = [c for c in log.column_names if not c.startswith("_")]
    assert set(log["_change_type"].to_pylist()) == {"insert"}
    got = list(zip(*(log[c].to_pylist() for c in columns)))
    assert Counter(got) == wanted
    order = sorted(zip(log["_commit_version"].to_pylist(), log["v"].to_pylist()))
    assert all(earlier[1] <= later[1] for earlier, later in pairwise(order))


def output(name: str, delta: Delta) -> Row:
    """What the SELECT list of the query makes of a delta."""
    row = delta.old if delta.new is None else delta.new
    assert row is not None
    was = None if delta.old is None else delta.old[{"rich": 1, "owned": 3}[name]]
    tail = (was, delta.commit_version)
    return (delta.marker, *row, *tail) if name == "rich" else (*row, delta.marker, *tail)


def check_calls(name: str, deltas: list[Delta], calls: Path) -> int:
    """The batches came in order, whole, and together they are the log; returns how many came again."""
    lines = [json.loads(line) for line in calls.read_text(encoding="utf-8").splitlines()]
    keys = [tuple(line["key"]) for line in lines]
    assert {query for query, _, _ in keys} == {name}
    assert keys == sorted(keys), "a batch came before another one that is ahead of it"
    batches: dict[Row, Any] = {}
    for key, line in zip(keys, lines):
        assert batches.setdefault(key, line) == line, f"{key} came again with other content"
    check_last({key: line["last"] for key, line in batches.items()})
    got = [(key[1], *delta) for key, line in batches.items() for delta in line["deltas"]]
    shown = [(d.commit_version, d.marker, d.sequence, d.new, d.old) for d in deltas]
    assert got == [tuple(one) for one in json.loads(json.dumps(shown, default=str))]
    return len(keys) - len(batches)


def check_last(last: dict[Row, bool]) -> None:
    """`last` stands on the last batch of every commit and on no other."""
    versions = [version for _, version, _ in last]
    assert list(last.values()) == [a != b for a, b in pairwise([*versions, None])]
    assert False in last.values(), "no commit of this story was large enough"


# ---------------------------------------------------------------- files


def published(engine: Engine, warehouse: Path, name: str) -> pa.Table:
    """The change log as Delta Lake shows it; it must be the engine's own."""
    state, newest = engine.catalog.state, engine.catalog.newest_version
    query = state.queries.get(name)
    table = state.tables[name].storage if query is None else query.result
    root = root_of(engine.catalog.storage_of(table), "log")
    check_history(warehouse / root)
    shown = delta_rows(warehouse, root)
    own = engine.services.reader.changes(table, 0, newest).toArrow()
    columns = sorted(set(own.column_names) & set(shown.column_names))
    assert {"_change_type", "_commit_version", *(c.name for c in table.columns)} <= set(columns)
    assert rows_of(shown, columns) == rows_of(own, columns), f"the published log of {name}"
    if table.kind == "base":
        base = engine.catalog.layout(table.id, newest).base
        if base:
            image_there = delta_rows(warehouse, root_of(engine.catalog.storage_of(table), "snapshot"))
            own = engine.services.reader.image(table, base).toArrow()
            names = [c.name for c in table.columns]
            assert rows_of(image_there, names) == rows_of(own, names), f"the published table {name}"
    return shown


def check_history(root: Path) -> None:
    """No version was published twice: an outside reader of the Delta commits would see its changes again."""
    versions = []
    for entry in reversed(DeltaTable(str(root)).history()):
        commit = root / "_delta_log" / f"{entry['version']:020}.json"
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        if "cq_engine.commit_version" in entry and any(a["add"]["dataChange"] for a in actions if "add" in a):
            versions.append(int(entry["cq_engine.commit_version"]))
    assert versions
    assert all(earlier < later for earlier, later in pairwise(versions))


def delta_rows(warehouse: Path, root: str) -> pa.Table:
    return pa.table(DeltaTable(str(warehouse / root)).to_pyarrow_table())


def rows_of(table: pa.Table, columns: list[str]) -> Counter[Row]:
    return Counter(zip(*(table[c].to_pylist() for c in columns)))


def image(log: pa.Table, version: int) -> pa.Table:
    """The rows after `version`, from a change log of a table with the key `id`."""
    past = log.filter(pc.less_equal(log["_commit_version"], version))
    before = past.filter(pc.is_in(past["_change_type"], pa.array(["delete", "update_preimage"])))
    after = past.filter(pc.is_in(past["_change_type"], pa.array(["insert", "update_postimage"])))
    names = [c for c in log.column_names if not c.startswith("_")]
    rows = rows_of(after, names)
    rows.subtract(rows_of(before, names))
    assert set(rows.values()) <= {0, 1}, f"the change log does not add up at version {version}"
    values = [row for row, count in rows.items() if count]
    types = [log.schema.field(n) for n in names]
    return pa.table(
        [pa.array([row[n] for row in values], f.type) for n, f in enumerate(types)], schema=pa.schema(types)
    )


def check_images(engine: Engine, logs: dict[str, pa.Table], look_at: int) -> None:
    """VERSION AS OF gives the images that the change logs add up to."""
    for name in ("account", "entry"):
        versions = sorted(set(logs[name]["_commit_version"].to_pylist()))
        for version in {versions[look_at % len(versions)], engine.catalog.newest_version}:
            wanted = image(logs[name], version)
            got = engine.execute(f"SELECT * FROM {name} VERSION AS OF {version}").to_arrow()
            assert rows_of(got, wanted.column_names) == rows_of(wanted, wanted.column_names)


def check_merged(engine: Engine, logs: dict[str, pa.Table], look_at: int) -> None:
    """The destination that is the result of a query is that at every version, whatever crashed when."""
    versions = sorted(set(logs["entry"]["_commit_version"].to_pylist()))
    for version in {versions[look_at % len(versions)], versions[-1]}:
        with duckdb.connect() as oracle:
            for table in ("account", "entry"):
                oracle.register(table, image(logs[table], version))
            wanted = Counter(oracle.sql(QUERIES["owned"]).fetchall())
        got = engine.execute(f"SELECT * FROM owned_now VERSION AS OF {version}").fetchall()
        assert Counter(got) == wanted, f"owned_now at version {version}"


def check_garbage(engine: Engine, warehouse: Path, *, broken_off: bool = False) -> None:
    """Every data file is one that the catalog or a Delta table names, or one that goes later, also where publications were
    `broken_off`; and no attempt is left."""
    there, known = files_there(warehouse), named_files(engine, warehouse)
    later = later_gone(warehouse) if broken_off else replaced_files(warehouse)
    assert there - known - later == set()
    assert known - there == set()
    with engine.catalog._reading() as connection:
        assert connection.execute(schema.attempts.select()).all() == []


def check_nothing_is_kept(engine: Engine, warehouse: Path) -> None:
    """Hours later and without a retention, every data file is one that the catalog or a Delta table names."""
    hours_ago = time.time() - 2 * 3600
    for path in later_gone(warehouse):
        os.utime(warehouse / path, (hours_ago, hours_ago))
    engine.vacuum(retain="0 hours")
    assert files_there(warehouse) == named_files(engine, warehouse)


def later_gone(warehouse: Path) -> set[str]:
    """What a published log keeps for its retention since it has become part of a larger file, and larger files
    that became no part of the log, since their publication was broken off: these stay for an hour."""
    merged = {path for path in files_there(warehouse) if Path(path).parent.name.startswith("merged-")}
    return merged | replaced_files(warehouse)


def named_files(engine: Engine, warehouse: Path) -> set[str]:
    view = engine.catalog.view
    known = {path for layout in view.layouts.values() for path in layout.files}
    known |= {f.path for layout in view.layouts.values() for c in layout.changes for f in c.files}
    for root in published_roots(warehouse):
        known |= {str((root / path).relative_to(warehouse)) for path in delta_files(root)}
    return known


def files_there(warehouse: Path) -> set[str]:
    there = {
        str(p.relative_to(warehouse)) for p in warehouse.rglob("*.parquet*") if "_delta_log" not in p.parts
    }
    return {path for path in there if not path.endswith(".crc")}


def replaced_files(warehouse: Path) -> set[str]:
    """Those of published tables that have become part of larger ones, and are still there."""
    found: set[str] = set()
    for root in published_roots(warehouse):
        entries = [path.read_text().splitlines() for path in (root / "_delta_log").glob("*.json")]
        removed = [
            action["remove"] for lines in entries for action in map(json.loads, lines) if "remove" in action
        ]
        gone = {action["path"] for action in removed if not action["dataChange"]} - set(delta_files(root))
        found |= {str((root / path).relative_to(warehouse)) for path in gone}
    return found & files_there(warehouse)


def published_roots(warehouse: Path) -> list[Path]:
    return [log.parent for log in warehouse.rglob("_delta_log")]


def delta_files(root: Path) -> list[str]:
    paths: list[str] = pa.table(DeltaTable(str(root)).get_add_actions())["path"].to_pylist()
    return paths
