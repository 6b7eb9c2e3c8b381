"""The six kinds of change, and the delete–insert model that the rules work on (Jörg & Dessloch, §3 and §5.3).

A delta is six sets of rows, which are disjoint in their keys (Definition 1): insertions, deletions, update pairs,
partial updates (the new row only), upserts (the new row; there was one before, or not) and partial deletions (the key
only). In the delete–insert model it is two: the rows that come, ∆, and those that go, ∇. A row of ∇ carries a *type
flag* that says how much is known of it (Figure 4):

| flag | the row of ∇ | comes from |
|---|---|---|
| `comp` | is known | deletions, old rows of update pairs |
| `up` | was there; only its key is known | partial updates, partial deletions |
| `ups` | was there or not; only its key is known | upserts |

Here both are one relation of *signed rows*: the weight `_w` is 1 in ∆ and −1 in ∇, `_v` is the commit version, and the
columns of ∇ that are not known are NULL. Rows of ∆ are always known; their flag is `comp`.

>>> translate_selection("up"), translate_selection("comp")
('ups', 'comp')
>>> translate_join("comp", "ups"), translate_join("pre", "up")
('ups', 'up')
>>> [change_type(inserted=True, deleted=flag) for flag in (None, *FLAGS)]
['insert', 'update_postimage', 'partial_update', 'upsert']
>>> [change_type(inserted=False, deleted=flag) for flag in FLAGS]
['delete', 'partial_delete', 'partial_delete']
"""

from __future__ import annotations

from collections.abc import Sequence

from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO, VERSION, WEIGHT
from cq_engine.catalog.change_rows import (
    DELETE,
    DELETES,
    INSERT,
    PARTIAL_DELETE,
    PARTIAL_UPDATE,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    UPSERT,
)
from cq_engine.core.columns import quote
from cq_engine.delta.numbering import dealt_out, hashed, sequence

__all__ = [
    "COMPLETE",
    "FLAG",
    "FLAGS",
    "PRESERVED",
    "UPDATED",
    "UPSERTED",
    "change_type",
    "complete_changes",
    "row_versions",
    "signed_changes",
    "to_change_rows",
    "translate_join",
    "translate_selection",
]

FLAG = "_flag"
COMPLETE, UPDATED, UPSERTED = FLAGS = ("comp", "up", "ups")
PRESERVED = "pre"
"""The flag of a row that has not changed, which is part of the old state (§5.6)."""

_COMING = (INSERT, UPDATE_POSTIMAGE, PARTIAL_UPDATE, UPSERT)
_KNOWN_GOING = (DELETE, UPDATE_PREIMAGE)
_UNKNOWN_GOING = {PARTIAL_UPDATE: UPDATED, UPSERT: UPSERTED, PARTIAL_DELETE: UPDATED}


def translate_selection(flag: str) -> str:
    """The function s of §5.5: a row that was there may not have satisfied the predicate."""
    return UPSERTED if flag == UPDATED else flag


def translate_join(left: str, right: str) -> str | None:
    """The function j of §5.6: of a row of ∇(S ⋈ T) from those of the rows that join, where that of S is known.

    None where it is not (`up`, `ups`): the row's partner cannot be found, and s says what becomes of the row alone.
    """
    if left == PRESERVED:
        return None if right == PRESERVED else right
    if left == COMPLETE:
        return COMPLETE if right in (PRESERVED, COMPLETE) else right
    return None


def change_type(*, inserted: bool, deleted: str | None) -> str:
    """Figure 6: the kind of change of a key that has a row in ∆ or not, and in ∇ one with the flag `deleted`, or none."""
    if not inserted:
        return DELETE if deleted == COMPLETE else PARTIAL_DELETE
    return {None: INSERT, COMPLETE: UPDATE_POSTIMAGE, UPDATED: PARTIAL_UPDATE, UPSERTED: UPSERT}[deleted]


def signed_changes(log: str, columns: Sequence[str], key: Sequence[str], b: int, *, compressed: bool) -> str:
    """SQL for the signed rows (`columns`, `_v`, `_w`, `_flag`) of change rows, by Figure 4.

    Args:
        log: a relation with the change rows of the interval: `columns`, `_change_type`, `_commit_version`.
        columns: the table's columns.
        key: those of its primary key.
        b: the version at the interval's end.
        compressed: the net change of each key in the interval, at version `b`: what is known of its row before comes
            from its first change, what is known of its row after from its last. A key that was deleted by a partial
            deletion, which may have found nothing, and then came back, is an upsert.
    """
    shown = ", ".join(map(quote, columns))
    keys = {name.lower() for name in key}
    padded = ", ".join(quote(name) if name.lower() in keys else f"NULL AS {quote(name)}" for name in columns)
    version = f"CAST({b} AS bigint)" if compressed else "_commit_version"
    flag = " ".join(f"WHEN '{kind}' THEN '{known}'" for kind, known in _UNKNOWN_GOING.items())
    flag = f"CASE _change_type {flag} END"
    source, first, last = log, "true", "true"
    if compressed:
        window = f"OVER (PARTITION BY {', '.join(map(quote, key))})"
        source = f"(SELECT *, min(_commit_version) {window} AS _first, max(_commit_version) {window} AS _last FROM {log})"
        first, last = "_commit_version = _first", "_commit_version = _last"
        flag = f"CASE WHEN _change_type = '{PARTIAL_DELETE}' AND _first < _last THEN '{UPSERTED}' ELSE {flag} END"
    return (
        f"SELECT {shown}, {version} AS {VERSION}, 1 AS {WEIGHT}, '{COMPLETE}' AS {FLAG} FROM {source}"
        f" WHERE {last} AND _change_type IN ({_list(_COMING)})"
        f" UNION ALL SELECT {shown}, {version}, -1, '{COMPLETE}' FROM {source}"
        f" WHERE {first} AND _change_type IN ({_list(_KNOWN_GOING)})"
        f" UNION ALL SELECT {padded}, {version}, -1, {flag} FROM {source}"
        f" WHERE {first} AND _change_type IN ({_list(tuple(_UNKNOWN_GOING))})"
    )


def row_versions(
    log: str, columns: Sequence[str], key: Sequence[str], a: int, b: int, *, compressed: bool
) -> str:
    """SQL for the row versions (`columns`, `_from`, `_to`) that are valid somewhere in the interval (a, b].

    The rows of a table of which there are but changes are those that the changes tell of: of each key the newest row, as
    long as no later change has deleted it.

    Args:
        log: a relation with all change rows up to version `b`.
        columns: the table's columns.
        key: those of its primary key.
        a: the version before the interval.
        b: the version at its end.
        compressed: changes inside the interval count as one change at `b`.
    """
    keys = ", ".join(map(quote, key))
    steps = (
        f"SELECT *, lead(_commit_version) OVER (PARTITION BY {keys} ORDER BY _commit_version) AS _next"
        f" FROM {log} WHERE _change_type <> '{UPDATE_PREIMAGE}'"
    )
    start, end = "_commit_version", f"coalesce(_next, {FOREVER})"
    kept = f"(_next IS NULL OR _next > {a})"
    if compressed:
        start, end = str(b), f"CASE WHEN _next IS NULL THEN {FOREVER} ELSE {b} END"
        kept = f"(_next IS NULL OR (_next > {a} AND _commit_version <= {a}))"
    return (
        f"SELECT {', '.join(map(quote, columns))}, CAST(CASE WHEN _commit_version <= {a} THEN {BEFORE}"
        f" ELSE {start} END AS bigint) AS {FROM}, CAST({end} AS bigint) AS {TO} FROM ({steps})"
        f" WHERE _change_type NOT IN ({_list(DELETES)}) AND {kept}"
    )


def to_change_rows(
    signed: str,
    columns: Sequence[str],
    key: Sequence[str],
    forms: Sequence[str] | None = None,
    types: Sequence[str] = (),
    parts: int = 1,
) -> str:
    """SQL for the change rows of signed rows, by Figure 6: `columns`, `_change_type`, `_commit_version`, `_sequence`
    (from 1 in each version) and `_duplicate` (the key stands for two rows at once).

    Update pairs of equal rows are left out: of complete changes the effectiveness can be tested (§5.4). `forms` are
    expressions by which equal values are found; None: the columns themselves. The rows of a version are numbered in so many `parts`
    (`delta.numbering`), where `types` are the columns' Spark types.
    """
    forms = [quote(name) for name in columns] if forms is None else forms
    kept = [
        f"first({quote(name)}) AS {quote(name)}" if form != quote(name) else quote(name)
        for name, form in zip(columns, forms)
    ]
    net = (
        f"SELECT {', '.join(kept)}, {VERSION}, {FLAG}, sum({WEIGHT}) AS {WEIGHT} FROM {signed}"
        f" GROUP BY {', '.join([*forms, VERSION, FLAG])} HAVING sum({WEIGHT}) <> 0"
    )
    keys = ", ".join(map(quote, key))
    net, version, parts = dealt_out(net, hashed(key, columns, types), parts)
    partition = f"OVER (PARTITION BY {version}, {keys})"
    counted = (
        f"SELECT *, count_if({WEIGHT} > 0) {partition} AS _new, count_if({WEIGHT} < 0) {partition} AS _old,"
        f" max(abs({WEIGHT})) {partition} AS _most,"
        f" max(CASE WHEN {WEIGHT} < 0 THEN {FLAG} END) {partition} AS _gone FROM ({net})"
    )
    whens = " ".join(f"WHEN '{flag}' THEN '{change_type(inserted=True, deleted=flag)}'" for flag in FLAGS)
    kind = (
        f"CASE WHEN {WEIGHT} > 0 THEN CASE _gone {whens} ELSE '{INSERT}' END"
        f" WHEN {FLAG} <> '{COMPLETE}' THEN '{PARTIAL_DELETE}'"
        f" WHEN _new > 0 THEN '{UPDATE_PREIMAGE}' ELSE '{DELETE}' END"
    )
    identity = {name.lower() for name in key}
    shown = ", ".join(
        quote(name)
        if name.lower() in identity
        else f"CASE WHEN {WEIGHT} > 0 OR {FLAG} = '{COMPLETE}' THEN {quote(name)} END AS {quote(name)}"
        for name in columns
    )
    number = sequence(f"dense_rank() OVER (PARTITION BY {version} ORDER BY {keys})", parts)
    return (
        f"SELECT {shown}, {kind} AS _change_type, {VERSION} AS _commit_version, {number} AS _sequence,"
        f" (_new > 1 OR _old > 1 OR _most > 1) AS _duplicate FROM ({counted})"
        f" WHERE NOT ({WEIGHT} < 0 AND {FLAG} <> '{COMPLETE}' AND _new > 0)"
    )


def complete_changes(log: str, known: str, columns: Sequence[str], key: Sequence[str], a: int) -> str:
    """SQL for complete change rows (`columns`, `_change_type`, `_commit_version`) of those in `log`, which may be partial.

    `known` has the rows of the keys after version `a`, which is that before the first of the changes (§4: what a view
    needs to know is in the view). A deletion of a row that is not there is nothing.
    """
    shown = ", ".join(map(quote, columns))
    keys = ", ".join(map(quote, key))
    there = f"_change_type NOT IN ({_list(DELETES)})"
    steps = (
        f"SELECT {keys}, _commit_version, if({there}, struct({shown}), NULL) AS _after FROM {log}"
        f" WHERE _change_type <> '{UPDATE_PREIMAGE}'"
        f" UNION ALL SELECT {keys}, CAST({a} AS bigint), struct({shown}) FROM {known}"
    )
    pairs = (
        f"SELECT _commit_version, _after, lag(_after) OVER (PARTITION BY {keys} ORDER BY _commit_version) AS _before"
        f" FROM ({steps})"
    )
    fields = ", ".join(f"_row.{quote(name)} AS {quote(name)}" for name in columns)
    rows = (
        f"CASE WHEN _before IS NULL THEN array(named_struct('kind', '{INSERT}', 'row', _after))"
        f" WHEN _after IS NULL THEN array(named_struct('kind', '{DELETE}', 'row', _before))"
        f" ELSE array(named_struct('kind', '{UPDATE_PREIMAGE}', 'row', _before),"
        f" named_struct('kind', '{UPDATE_POSTIMAGE}', 'row', _after)) END"
    )
    return (
        f"SELECT {fields}, _kind AS _change_type, _commit_version FROM (SELECT _commit_version, _each.kind AS _kind,"
        f" _each.row AS _row FROM (SELECT *, explode({rows}) AS _each FROM ({pairs})"
        f" WHERE _commit_version > {a} AND (_before IS NOT NULL OR _after IS NOT NULL)))"
    )


def _list(kinds: Sequence[str]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)
