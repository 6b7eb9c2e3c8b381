"""What a capture has brought already, where its table keeps no rows with which that could be compared.

TIMESTAMP reads the rows of its overlap again with every tick. Into a table with a snapshot, rows that are there as they are
are no changes. Beside a table WITHOUT SNAPSHOT a table `<capture>_seen` has the keys of the rows that the last tick has read,
each with a digest of the row: those that come again as they were are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import pyarrow as pa

from cq_engine.catalog.model import Capture, Table
from cq_engine.grammar.clauses import ColumnSpec, PrimaryKeySpec
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.tick import DELETE, UPSERT, Tick, with_operation
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.storage.rows import conform

__all__ = ["MOST", "seen_table", "unseen"]

MOST = 20_000
"""Of more rows than this in one tick nothing is noted: those of the overlap come again with the next."""
_DIGEST = "digest"


def _name(capture: Capture) -> str:
    return f"{capture.name}_seen"


def seen_table(capture: Capture, table: Table) -> CreateTable:
    """The table beside the capture's own: its key, and `digest` (STRING)."""
    types = {column.name.lower(): column.type for column in table.columns}
    key = table.primary_key or ()
    columns = [ColumnSpec(name, types[name.lower()], nullable=False) for name in key]
    return CreateTable(_name(capture), (*columns, ColumnSpec(_DIGEST, "STRING")), PrimaryKeySpec(key))


def unseen(tick: Tick, rows: pa.Table) -> tuple[pa.Table, dict[str, pa.Table]]:
    """The rows that the last tick has not read as they are, and the changes of the table beside."""
    side = tick.beside(_name(tick.capture))
    kept = tick.own_rows(side)
    if kept is None:
        catalog = tick.services.catalog
        kept = to_arrow(tick.services.reader.image(side.storage, catalog.newest_version))
    names, digests = [c.name for c in side.columns if c.name != _DIGEST], _digests(rows)
    keys, read = _texts(kept, names), _texts(rows, names)
    known = dict(zip(keys, kept.column(_DIGEST).to_pylist()))
    fresh = pa.array([known.get(key) != digest for key, digest in zip(read, digests)], pa.bool_())
    found = rows.filter(fresh)
    noted = set(read) if len(read) <= MOST else set()
    came = rows.select(names).append_column(_DIGEST, pa.array(digests, pa.string())).filter(fresh)
    came = came if noted else came.slice(0, 0)
    gone = kept.filter(pa.array([key not in noted for key in keys], pa.bool_()))
    changes = [
        with_operation(conform(each, side.columns), kind) for each, kind in ((came, UPSERT), (gone, DELETE))
    ]
    return found, {side.name: pa.concat_tables(changes)}


def _texts(rows: pa.Table, names: Sequence[str]) -> list[str]:
    known = {name.lower(): name for name in rows.column_names}
    columns = [rows.column(known[name.lower()]).to_pylist() for name in names]
    return [repr(values) for values in zip(*columns)]


def _digests(rows: pa.Table) -> list[str]:
    return [
        blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()
        for text in _texts(rows, sorted(rows.column_names))
    ]
