"""What may go: images, and change rows, below the lowest version that anybody still reads of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cq_engine.catalog.attempts import root_of, roots
from cq_engine.catalog.layouts import TableLayout
from cq_engine.catalog.view import Retired, Storage, View

__all__ = ["forgettable", "retire"]


def retire(view: View, holds: Mapping[int, int], *, logs: bool) -> list[Retired]:
    """What can be let go of the tables in `holds` (by id), where nobody reads a table below its version there.

    The floor of a table becomes its largest snapshot version at or below the hold; of a delta log, which has no
    images, the hold. Files that left the snapshot at or below the floor go, unless a change set still reads them or the
    published Delta table may still name them. Change sets at or below the floor go too: those of states always, nobody
    asks for the history of a state; others with `logs`. Files of published logs stay where they are: they belong to
    the Delta table then.
    """
    kinds = {number: table.kind for number, table in view.tables().items()}
    with view.lock:
        found = [
            _retire(layout, kinds[number], holds[number], view.storage.get(number), logs)
            for number, layout in view.layouts.items()
            if number in kinds and number in holds
        ]
    return _without_shared(view, [entry for entry in found if entry is not None])


def _without_shared(view: View, entries: Sequence[Retired]) -> list[Retired]:
    """The entries without files that another table needs: executors write the rows of a query's delta log and those of its result once,
    where these are the same. They go with the change set that reads them last, unless they belong to a published log."""
    gone = {number for entry in entries for number in entry.changes}
    with view.lock:
        sets = [c for layout in view.layouts.values() for c in layout.changes if c.id not in gone]
        storages = dict(view.storage)
    read = {file.path for each in sets for file in each.files}
    published = tuple(f"{root_of(each, 'log')}/" for each in storages.values() if _has_open_log(each))

    def may_go(path: str, own: tuple[str, ...]) -> bool:
        return path not in read and (path.startswith(own) or not path.startswith(published))

    found = []
    for entry in entries:
        storage = storages.get(entry.table_id)
        own = tuple(f"{root}/" for root in roots(storage)) if storage is not None else ()
        found.append(replace(entry, files=tuple(path for path in entry.files if may_go(path, own))))
    return found


def _has_open_log(storage: Storage) -> bool:
    """Do its change files belong to a Delta table that others read?"""
    return storage.kind in ("base", "changes", "delta") and storage.published_log > 0


def forgettable(view: View, below: int, retired: Sequence[Retired]) -> list[int]:
    """The commits below a version of which nothing is left when `retired` is gone: no change rows and no snapshot.

    No change row has their timestamps, and what a table shows at their time it shows at the commit before, too. The first
    commit stays, so that the time before it is known.
    """
    gone = {number for entry in retired for number in entry.changes}
    with view.lock:
        layouts = list(view.layouts.values())
        spans = [(c.low, c.high) for layout in layouts for c in layout.changes if c.id not in gone]
        spans += [(s, s) for layout in layouts for s in layout.snapshots]
    return view.commits.outside(below, spans)


def _retire(layout: TableLayout, kind: str, hold: int, storage: Storage | None, logs: bool) -> Retired | None:
    kept = [s for s in layout.snapshots if s <= hold]
    if not kept:
        return None
    floor = max(hold, layout.floor) if kind == "delta" and logs else kept[-1]
    gone = [c for c in layout.changes if c.high <= floor] if logs or kind == "state" else []
    gone_ids = {c.id for c in gone}
    read = {f.path for c in layout.changes if c.id not in gone_ids for f in c.files}
    shown = storage.published_table if storage is not None and storage.published_table >= 0 else floor
    highest = min(floor, shown)
    outside = {p: f for p, f in layout.files.items() if f.removed is not None and f.removed <= highest}
    files = [path for path in outside if path not in read]
    current = {p for p, f in layout.files.items() if p not in outside}
    open_log = storage is not None and _has_open_log(storage)
    files += [
        f.path
        for c in gone
        if c.insert_only or not open_log
        for f in c.files
        if f.path not in outside and f.path not in current
    ]
    if floor == layout.floor and not files and not gone:
        return None
    return Retired(layout.table_id, floor, tuple(files), tuple(gone_ids))
