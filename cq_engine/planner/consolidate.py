"""The last step of a delta plan: signed rows become the rows of a delta log.

Rows are consolidated per commit (equal rows cancel), then numbered and typed by result key: a −1 and a +1 of one key
are an update, a lone −1 a delete, a lone +1 an insert. Without a key, rows are repeated by their weight. This makes
the delta minimal (SEMANTICS §2, laws 1 to 3 and 5).
"""

from __future__ import annotations

from collections.abc import Sequence

from cq_engine.algebra.emit import quote
from cq_engine.algebra.nodes import VERSION, WEIGHT
from cq_engine.delta.numbering import dealt_out, hashed, sequence
from cq_engine.planner.comparable import comparable

__all__ = ["DUPLICATE", "consolidate"]

DUPLICATE = "_duplicate"
"""TRUE in rows whose result key stands for two rows at once."""
_COME = 2**40
"""Added to the numbers of rows without a key that come, where those that go are numbered in parts: they are behind all of these."""


def consolidate(
    signed: str,
    columns: Sequence[str],
    key: Sequence[str] | None,
    types: Sequence[str] | None = None,
    parts: int = 1,
    *,
    gone: bool = True,
) -> str:
    """SQL for the delta log's rows from the relation `signed` (`columns`, `_v`, `_w`).

    `types` are the columns' Spark types; None: plain GROUP BY finds equal rows. The rows of a version are numbered in so many
    `parts` (`delta.numbering`), where there are types. Without a key those that are `gone` come first, if any can be.
    Columns: `columns`, `_change_type`, `_commit_version`, `_sequence` (BIGINT; 1, 2, 3, … in each version where there is one part), `_duplicate`.
    """
    shown = ", ".join(map(quote, columns))
    net = _net(signed, columns, types)
    if key is None:
        repeated = (
            f"SELECT * FROM ({net}) LATERAL VIEW explode(sequence(1, CAST(abs({WEIGHT}) AS int))) r AS _r"
        )
        kind = f"CASE WHEN {WEIGHT} > 0 THEN 'insert' ELSE 'delete' END"
        forms = [] if types is None else [comparable(quote(n), kind) for n, kind in zip(columns, types)]
        repeated, version, parts = dealt_out(repeated, forms and [*forms, "_r"], parts)
        number = sequence(f"row_number() OVER (PARTITION BY {version} ORDER BY {WEIGHT})", parts)
        if parts > 1 and gone:
            number = f"{number} + if({WEIGHT} > 0, {_COME}, 0)"
        return (
            f"SELECT {shown}, {kind} AS _change_type, {VERSION} AS _commit_version,"
            f" {number} AS _sequence, false AS {DUPLICATE} FROM ({repeated})"
        )
    keys = ", ".join(map(quote, key))
    net, version, parts = dealt_out(net, hashed(key, columns, types or ()), parts)
    partition = f"PARTITION BY {version}{', ' + keys if keys else ''}"
    counted = (
        f"SELECT *, count_if({WEIGHT} > 0) OVER ({partition}) AS _new, count_if({WEIGHT} < 0) OVER ({partition}) AS _old,"
        f" max(abs({WEIGHT})) OVER ({partition}) AS _most FROM ({net})"
    )
    kind = (
        f"CASE WHEN {WEIGHT} > 0 THEN CASE WHEN _old > 0 THEN 'update_postimage' ELSE 'insert' END"
        " ELSE CASE WHEN _new > 0 THEN 'update_preimage' ELSE 'delete' END END"
    )
    number = sequence(f"dense_rank() OVER (PARTITION BY {version} ORDER BY {keys or '1'})", parts)
    return (
        f"SELECT {shown}, {kind} AS _change_type, {VERSION} AS _commit_version, {number} AS _sequence,"
        f" (_new > 1 OR _old > 1 OR _most > 1) AS {DUPLICATE} FROM ({counted})"
    )


def _net(signed: str, columns: Sequence[str], types: Sequence[str] | None) -> str:
    """The signed rows without those that cancel."""
    names = [quote(name) for name in columns]
    forms = names if types is None else [comparable(n, kind) for n, kind in zip(names, types)]
    shown = [n if n == form else f"first({n}) AS {n}" for n, form in zip(names, forms)]
    return (
        f"SELECT {', '.join([*shown, VERSION])}, sum({WEIGHT}) AS {WEIGHT} FROM {signed}"
        f" GROUP BY {', '.join([*forms, VERSION])} HAVING sum({WEIGHT}) <> 0"
    )
