"""Changes and row versions of one table over (a, b], as Spark SQL over its change rows and its base image.

`log` are the change rows of (base, b], where the image at `base` <= a is given too. Netting a table's changes over
the interval (compressed deltas) happens here, so that no rule above knows of modes. This is the pre-image by "undo" of
the paper's slide 19 without a scan of the changed rows: what a key was before comes from its own before-images.

>>> print(changes_sql("net", ["o", "cust"], 3))
SELECT `o`, `cust`, _cq_version, _cq_weight FROM net WHERE _cq_version > 3
>>> print(history_sql("base", None, ["o"], ["o"], 3, insert_only=False))
SELECT `o`, CAST(-1 AS bigint) AS _cq_from, CAST(9223372036854775807 AS bigint) AS _cq_to FROM base b
"""

from __future__ import annotations

from collections.abc import Sequence

from cq_engine.algebra.emit import quote
from cq_engine.algebra.nodes import BEFORE, FOREVER
from cq_engine.core.columns import ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT

__all__ = ["changes_sql", "history_sql", "net_sql"]

_SIGN = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"


def net_sql(
    log: str, columns: Sequence[str], identity: Sequence[str], a: int, b: int, compressed: bool
) -> str:
    """Signed change rows: `columns`, `ROW_VERSION`, `ROW_WEIGHT`. Compressed: of (a, b] only the net change per row, at
    version b."""
    shown = ", ".join(map(quote, columns))
    signed = f"SELECT {shown}, _commit_version AS {ROW_VERSION}, {_SIGN} AS {ROW_WEIGHT} FROM {log}"
    if not compressed:
        return signed
    partition = f"PARTITION BY {_list(identity)}" if identity else ""
    return (
        f"SELECT {shown}, CAST({b} AS bigint) AS {ROW_VERSION}, {ROW_WEIGHT} FROM (SELECT *,"
        f" min({ROW_VERSION}) OVER ({partition}) AS _cq_first, max({ROW_VERSION}) OVER ({partition}) AS _cq_last"
        f" FROM ({signed}) WHERE {ROW_VERSION} > {a})"
        f" WHERE ({ROW_WEIGHT} = -1 AND {ROW_VERSION} = _cq_first) OR ({ROW_WEIGHT} = 1 AND {ROW_VERSION} = _cq_last)"
        f" UNION ALL SELECT {shown}, {ROW_VERSION}, {ROW_WEIGHT} FROM ({signed}) WHERE {ROW_VERSION} <= {a}"
    )


def changes_sql(net: str, columns: Sequence[str], a: int) -> str:
    """The signed change rows of the interval: `columns`, `ROW_VERSION`, `ROW_WEIGHT`."""
    return f"SELECT {_list(columns)}, {ROW_VERSION}, {ROW_WEIGHT} FROM {net} WHERE {ROW_VERSION} > {a}"


def history_sql(
    base: str | None,
    net: str | None,
    columns: Sequence[str],
    identity: Sequence[str],
    a: int,
    insert_only: bool,
    undo: bool = True,
) -> str:
    """Row versions: `columns`, `ROW_FROM`, `ROW_TO`, for every version from `a` on.

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
    rows = f"SELECT {_list(columns)}, CAST({BEFORE} AS bigint) AS {ROW_FROM}, CAST({FOREVER} AS bigint) AS {ROW_TO} FROM {base} b"
    if net is None:
        return rows
    if not identity:
        return f"{rows} WHERE NOT EXISTS (SELECT 1 FROM {net})"
    keys = ", ".join(f"{quote(name)} AS _cq_k{i}" for i, name in enumerate(identity))
    on = " AND ".join(f"b.{quote(name)} <=> n._cq_k{i}" for i, name in enumerate(identity))
    return f"{rows} LEFT ANTI JOIN (SELECT DISTINCT {keys} FROM {net}) n ON {on}"


def _before(base: str, net: str, columns: Sequence[str], identity: Sequence[str], a: int) -> str:
    """The rows of the base that the interval changes first, until then."""
    keys = ", ".join(f"{quote(name)} AS _cq_k{i}" for i, name in enumerate(identity))
    groups = f" GROUP BY {_list(identity)}" if identity else ""
    first = f"(SELECT {keys + ', ' if keys else ''}min({ROW_VERSION}) AS _cq_first FROM {net}{groups}) n"
    on = " AND ".join(f"b.{quote(name)} <=> n._cq_k{i}" for i, name in enumerate(identity)) or "true"
    return (
        f"SELECT {_list(columns)}, CAST({BEFORE} AS bigint) AS {ROW_FROM}, n._cq_first AS {ROW_TO}"
        f" FROM {base} b JOIN {first} ON {on} WHERE n._cq_first > {a}"
    )


def _inserts(net: str, columns: Sequence[str], a: int) -> str:
    start = f"CASE WHEN {ROW_VERSION} > {a} THEN {ROW_VERSION} ELSE CAST({BEFORE} AS bigint) END"
    return f"SELECT {_list(columns)}, {start} AS {ROW_FROM}, CAST({FOREVER} AS bigint) AS {ROW_TO} FROM {net}"


def _versions(net: str, columns: Sequence[str], identity: Sequence[str], a: int, undo: bool) -> str:
    """After-images until the key's next change; with `undo` before-images of a key's first change in the interval."""
    partition = f"PARTITION BY {_list(identity)} " if identity else ""
    following = (
        f"min({ROW_VERSION}) OVER ({partition}ORDER BY {ROW_VERSION}"
        " RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    )
    first = f"min({ROW_VERSION}) OVER ({partition})" if identity else f"min({ROW_VERSION}) OVER ()"
    inner = f"SELECT *, {following} AS _cq_next, {first} AS _cq_first FROM {net}"
    start = f"CASE WHEN {ROW_WEIGHT} = 1 AND {ROW_VERSION} > {a} THEN {ROW_VERSION} ELSE CAST({BEFORE} AS bigint) END"
    end = f"CASE WHEN {ROW_WEIGHT} = 1 THEN coalesce(_cq_next, CAST({FOREVER} AS bigint)) ELSE {ROW_VERSION} END"
    return (
        f"SELECT {_list(columns)}, {start} AS {ROW_FROM}, {end} AS {ROW_TO} FROM ({inner})"
        f" WHERE ({ROW_WEIGHT} = 1 AND coalesce(_cq_next, {FOREVER}) > {a})"
        + (f" OR ({ROW_WEIGHT} = -1 AND _cq_first = {ROW_VERSION} AND {ROW_VERSION} > {a})" if undo else "")
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))
