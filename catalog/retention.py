"""What may go: images below the lowest version that anybody still reads."""

from __future__ import annotations

from cq_engine.catalog.layouts import TableLayout
from cq_engine.catalog.view import Retired, Storage, View, versioned_tables

__all__ = ["retire"]


def retire(view: View, lowest_pin: int) -> list[Retired]:
    """What can be let go where nobody reads below `lowest_pin` any more.

    The floor of a table becomes its largest snapshot version at or below the pin. Files that left the snapshot at or
    below it go, unless a change set still reads them or the published Delta table may still name them. Change sets of states below it go too: nobody asks for the
    history of a state. Those of tables and delta logs stay.
    """
    kinds = {table.id: table.kind for table in versioned_tables(view.state).values()}
    with view.lock:
        found = [
            _retire(layout, kinds.get(layout.table_id), lowest_pin, view.storage.get(layout.table_id))
            for layout in view.layouts.values()
        ]
    return [entry for entry in found if entry is not None]


def _retire(
    layout: TableLayout, kind: str | None, lowest_pin: int, storage: Storage | None
) -> Retired | None:
    kept = [s for s in layout.snapshots if s <= lowest_pin]
    if kind is None or not kept:
        return None
    floor = kept[-1]
    gone = [c for c in layout.changes if c.high <= floor] if kind == "state" else []
    gone_ids = {c.id for c in gone}
    read = {f.path for c in layout.changes if c.id not in gone_ids for f in c.files}
    shown = storage.published_table if storage is not None and storage.published_table >= 0 else floor
    highest = min(floor, shown)
    outside = {p: f for p, f in layout.files.items() if f.removed is not None and f.removed <= highest}
    files = [path for path in outside if path not in read]
    current = {p for p, f in layout.files.items() if p not in outside}
    files += [f.path for c in gone for f in c.files if f.path not in outside and f.path not in current]
    if floor == layout.floor and not files and not gone:
        return None
    return Retired(layout.table_id, floor, tuple(files), tuple(gone_ids))
