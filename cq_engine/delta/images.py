"""Changes and row versions of one table over (a, b], as Spark SQL over its change rows and its base image.

`log` are the change rows of (base, b], where the image at `base` <= a is given too. Netting a table's changes over
the interval (compressed deltas) happens here, so that no rule above knows of modes. This is the pre-image by "undo" of
the paper's slide 19 without a scan of the changed rows: what a key was before comes from its own before-images.

>>> print(changes_sql("net", ["o", "cust"], 3))
SELECT `o`, `cust`, _v, _w FROM net WHERE _v > 3
>>> print(history_sql("base", None, ["o"], ["o"], 3, insert_only=False))
SELECT `o`, CAST(-1 AS bigint) AS _from, CAST(9223372036854775807 AS bigint) AS _to FROM base b
"""

from __future__ import annotations

from collections.abc import Sequence

from cq_engine.algebra.emit import quote
from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO, VERSION, WEIGHT

__all__ = ["changes_sql", "history_sql", "net_sql"]

_SIGN = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"


def net_sql(
    log: str, columns: Sequence[str], identity: Sequence[str], a: int, b: int, compressed: bool
) -> str:
    """Signed change rows: `columns`, `_v`, `_w`. Compressed: of (a, b] only the net change per row, at version b."""
    shown = ", ".join(map(quote, columns))
    signed = f"SELECT {shown}, _commit_version AS {VERSION}, {_SIGN} AS {WEIGHT} FROM {log}"
    if not compressed:
        return signed
    partition = f"PARTITION BY {_list(identity)}" if identity else ""
    return (
        f"SELECT {shown}, CAST({b} AS bigint) AS {VERSION}, {WEIGHT} FROM (SELECT *,"
        f" min({VERSION}) OVER ({partition}) AS _first, max({VERSION}) OVER ({partition}) AS _last"
        f" FROM ({signed}) WHERE {VERSION} > {a})"
        f" WHERE ({WEIGHT} = -1 AND {VERSION} = _first) OR ({WEIGHT} = 1 AND {VERSION} = _last)"
        f" UNION ALL SELECT {shown}, {VERSION}, {WEIGHT} FROM ({signed}) WHERE {VERSION} <= {a}"
    )


def changes_sql(net: str, columns: Sequence[str], a: int) -> str:
    """The signed change rows of the interval: `columns`, `_v`, `_w`."""
    return f"SELECT {_list(columns)}, {VERSION}, {WEIGHT} FROM {net} WHERE {VERSION} > {a}"


def history_sql(
    base: str | None,
    net: str | None,
    columns: Sequence[str],
    identity: Sequence[str],
    a: int,
    insert_only: bool,
    undo: bool = True,
) -> str:
    """Row versions: `columns`, `_from`, `_to`, for every version from `a` on.

    `base` (None: empty) are the rows of the image from which `net` goes on (None: no changes). With `insert_only` the
    change rows are inserts of new identities, so the base needs no anti-join. Without `undo`, what a changed row was
    before the interval comes from the base, too, not from its before-image.
    """
    parts = []
    if base is not None:
        parts.append(_base(base, None if insert_only else net, columns, identity))
    if base is not None and net is not None and not insert_only and not undo:
        parts.append(_before(base, net, columns, identity, a))
    if net is not None:
        parts.append(_inserts(net, columns, a) if insert_only else _versions(net, columns, identity, a, undo))
    return "\nUNION ALL\n".join(parts)


def _base(base: str, net: str | None, columns: Sequence[str], identity: Sequence[str]) -> str:
    rows = f"SELECT {_list(columns)}, CAST({BEFORE} AS bigint) AS {FROM}, CAST({FOREVER} AS bigint) AS {TO} FROM {base} b"
    if net is None:
        return rows
    if not identity:
        return f"{rows} WHERE NOT EXISTS (SELECT 1 FROM {net})"
    keys = ", ".join(f"{quote(name)} AS _k{i}" for i, name in enumerate(identity))
    on = " AND ".join(f"b.{quote(name)} <=> n._k{i}" for i, name in enumerate(identity))
    return f"{rows} LEFT ANTI JOIN (SELECT DISTINCT {keys} FROM {net}) n ON {on}"


def _before(base: str, net: str, columns: Sequence[str], identity: Sequence[str], a: int) -> str:
    """The rows of the base that the interval changes first, until then."""
    keys = ", ".join(f"{quote(name)} AS _k{i}" for i, name in enumerate(identity))
    groups = f" GROUP BY {_list(identity)}" if identity else ""
    first = f"(SELECT {keys + ', ' if keys else ''}min({VERSION}) AS _first FROM {net}{groups}) n"
    on = " AND ".join(f"b.{quote(name)} <=> n._k{i}" for i, name in enumerate(identity)) or "true"
    return (
        f"SELECT {_list(columns)}, CAST({BEFORE} AS bigint) AS {FROM}, n._first AS {TO}"
        f" FROM {base} b JOIN {first} ON {on} WHERE n._first > {a}"
    )


def _inserts(net: str, columns: Sequence[str], a: int) -> str:
    start = f"CASE WHEN {VERSION} > {a} THEN {VERSION} ELSE CAST({BEFORE} AS bigint) END"
    return f"SELECT {_list(columns)}, {start} AS {FROM}, CAST({FOREVER} AS bigint) AS {TO} FROM {net}"


def _versions(net: str, columns: Sequence[str], identity: Sequence[str], a: int, undo: bool) -> str:
    """After-images until the key's next change; with `undo` before-images of a key's first change in the interval."""
    partition = f"PARTITION BY {_list(identity)} " if identity else ""
    following = (
        f"min({VERSION}) OVER ({partition}ORDER BY {VERSION}"
        " RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    )
    first = f"min({VERSION}) OVER ({partition})" if identity else f"min({VERSION}) OVER ()"
    inner = f"SELECT *, {following} AS _next, {first} AS _first FROM {net}"
    start = f"CASE WHEN {WEIGHT} = 1 AND {VERSION} > {a} THEN {VERSION} ELSE CAST({BEFORE} AS bigint) END"
    end = f"CASE WHEN {WEIGHT} = 1 THEN coalesce(_next, CAST({FOREVER} AS bigint)) ELSE {VERSION} END"
    return (
        f"SELECT {_list(columns)}, {start} AS {FROM}, {end} AS {TO} FROM ({inner})"
        f" WHERE ({WEIGHT} = 1 AND coalesce(_next, {FOREVER}) > {a})"
        + (f" OR ({WEIGHT} = -1 AND _first = {VERSION} AND {VERSION} > {a})" if undo else "")
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))
