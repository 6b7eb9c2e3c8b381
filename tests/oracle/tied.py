"""Queries whose orders have many ties, and what they must give: Python over the rows that the tables must have.

Neither Spark nor the plan has a part in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.law import Row

__all__ = ["QUERIES", "Query", "Tables"]

Rows = list[dict[str, Any]]


@dataclass
class Tables:
    """`t` has the key `id`, `e` has no key and rows that are equal in all columns."""

    t: Rows = field(default_factory=list)
    e: Rows = field(default_factory=list)


def order(row: dict[str, Any], *columns: str) -> tuple[Any, ...]:
    """Spark's: NULL first; a column with - comes last in reverse."""
    found = []
    for column in columns:
        value = row[column.lstrip("-")]
        if column.startswith("-"):
            found.append((value is None, -(value or 0)))
        else:
            found.append((value is not None, value))
    return tuple(found)


def ordered(rows: Iterable[dict[str, Any]], *columns: str) -> Rows:
    return sorted(rows, key=lambda row: order(row, *columns))


def groups(rows: Rows) -> list[tuple[Any, Rows]]:
    return [(p, [r for r in rows if r["p"] == p]) for p in {r["p"] for r in rows}]


def present(values: Iterable[Any]) -> list[Any]:
    return [v for v in values if v is not None]


def one(values: Sequence[Any], place: int = 0) -> Any:
    return values[place] if -len(values) <= place < len(values) else None


def mode(values: Iterable[Any]) -> Any:
    counts = Counter(present(values))
    return min(counts, key=lambda v: (-counts[v], v)) if counts else None


def joined(values: Iterable[Any], by: str = "") -> str | None:
    there = present(values)
    return by.join(there) if there else None


# ------------------------------------------------------------------------------------------------ with a key

GROUPED = """SELECT p, first(x) AS a, last(x, true) AS b, any_value(s) FILTER (WHERE o > 0) AS c, collect_list(x) AS d,
    collect_list(DISTINCT o) AS e, mode(x) AS f, max_by(s, o) AS g, min_by(x, o) AS h, listagg(s) AS i, listagg(DISTINCT s) AS k, collect_set(x) AS l, count(*) AS n,
    max_by(x, o, 2) AS m, first(x) FILTER (WHERE o < 2) IGNORE NULLS AS q
    FROM t GROUP BY p"""


def grouped(tables: Tables) -> list[Row]:
    return [
        (p, *_aggregates(ordered(rows, "id")), *_more(ordered(rows, "id"))) for p, rows in groups(tables.t)
    ]


def _aggregates(rows: Rows) -> Row:
    by_o = [r for r in rows if r["o"] is not None]
    return (
        rows[0]["x"],
        one(present(r["x"] for r in rows), -1),
        one([r["s"] for r in by_o if r["o"] > 0]),
        present(r["x"] for r in rows),
        sorted({r["o"] for r in by_o}),
        mode(r["x"] for r in rows),
        one([r["s"] for r in ordered(by_o, "o", "id")], -1),
        one([r["x"] for r in ordered(by_o, "o", "id")]),
        joined(r["s"] for r in rows),
        joined(sorted(set(present(r["s"] for r in rows)))),
        sorted(set(present(r["x"] for r in rows))),
        len(rows),
    )


def _more(rows: Rows) -> Row:
    by_o = [r for r in rows if r["o"] is not None]
    most = [r["x"] for r in ordered(by_o, "o", "id")][::-1][:2]
    return most or None, one(present(r["x"] for r in by_o if r["o"] < 2))


SCALAR = "SELECT first(x) AS a, collect_list(s) AS b, any_value(o) IGNORE NULLS AS c FROM t WHERE o = 1"


LISTS = "SELECT p, listagg(s, ',') WITHIN GROUP (ORDER BY o DESC) AS a, listagg(x) AS b FROM t GROUP BY p"


def lists(tables: Tables) -> list[Row]:
    found: list[Row] = []
    for p, rows in groups(tables.t):
        numbers = joined(None if r["x"] is None else str(r["x"]) for r in ordered(rows, "id"))
        found.append((p, joined((r["s"] for r in ordered(rows, "-o", "id")), ","), numbers))
    return found


def scalar(tables: Tables) -> list[Row]:
    rows = [r for r in ordered(tables.t, "id") if r["o"] == 1]
    return [(one([r["x"] for r in rows]), present(r["s"] for r in rows), one(present(r["o"] for r in rows)))]


OVER = "OVER (PARTITION BY p ORDER BY o"
WINDOWS = f"""SELECT id, row_number() {OVER}) AS a, ntile(2) {OVER}) AS b, lag(x) {OVER}) AS c,
    lead(x) IGNORE NULLS {OVER}) AS d, first_value(x) {OVER}) AS e, first_value(x) IGNORE NULLS {OVER}) AS f,
    last_value(x) {OVER}) AS g, nth_value(x, 2) {OVER}) AS h, collect_list(x) {OVER}) AS i,
    sum(x) {OVER} ROWS 1 PRECEDING) AS j, any_value(x) OVER (PARTITION BY p) AS k,
    last_value(x) {OVER} RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS l, rank() {OVER}) AS m,
    mode(s) {OVER}) AS n, max_by(s, x) {OVER}) AS q FROM t"""


def windows(tables: Tables) -> list[Row]:
    return [row for _, rows in groups(tables.t) for row in _partition(ordered(rows, "o", "id"))]


def _partition(rows: Rows) -> list[Row]:
    found = []
    for at, row in enumerate(rows):
        frame = [r for r in rows if order(r, "o") <= order(row, "o")]
        near = (
            [r for r in frame if r["o"] is not None and r["o"] >= row["o"] - 1]
            if row["o"] is not None
            else frame
        )
        larger = (len(rows) + 1) // 2
        by_x = ordered((r for r in frame if r["x"] is not None), "x", "id")
        found.append((
            row["id"], at + 1, 1 if at < larger else 2, rows[at - 1]["x"] if at else None,
            one(present(r["x"] for r in rows[at + 1 :])), frame[0]["x"], one(present(r["x"] for r in frame)),
            frame[-1]["x"], one([r["x"] for r in frame], 1), present(r["x"] for r in frame),
            _sum(r["x"] for r in rows[max(at - 1, 0) : at + 1]), ordered(rows, "id")[0]["x"],
            near[-1]["x"], 1 + sum(order(r, "o") < order(row, "o") for r in rows),
            mode(r["s"] for r in frame), one([r["s"] for r in by_x], -1),
        ))  # fmt: skip
    return found


def _sum(values: Iterable[Any]) -> int | None:
    there = present(values)
    return sum(there) if there else None


LIMIT = "SELECT id, x FROM t ORDER BY o DESC LIMIT 3 OFFSET 1"


def limit(tables: Tables) -> list[Row]:
    return [(r["id"], r["x"]) for r in ordered(tables.t, "-o", "id")[1:4]]


TOP = "SELECT p, id, x FROM t QUALIFY row_number() OVER (PARTITION BY p ORDER BY o) <= 2"


def top(tables: Tables) -> list[Row]:
    return [(p, r["id"], r["x"]) for p, rows in groups(tables.t) for r in ordered(rows, "o", "id")[:2]]


UNKEYED_LIMIT = "SELECT x, s FROM t ORDER BY o LIMIT 4"


def unkeyed_limit(tables: Tables) -> list[Row]:
    return [(r["x"], r["s"]) for r in ordered(tables.t, "o", "x", "s")[:4]]


# ------------------------------------------------------------------------------------------------ without a key

BAG_GROUPED = """SELECT p, first(x) AS a, first(s) AS b, last(o) AS c, collect_list(x) AS d, max_by(x, s) AS e,
    listagg(s, '|') AS f FROM e GROUP BY p"""


def bag_grouped(tables: Tables) -> list[Row]:
    found: list[Row] = []
    for p, group in groups(tables.e):
        rows = ordered(group, "o", "x", "s")
        by_s = ordered((r for r in rows if r["s"] is not None), "s", "o", "x")
        values = (rows[0]["x"], rows[0]["s"], rows[-1]["o"], present(r["x"] for r in rows))
        found.append((p, *values, one([r["x"] for r in by_s], -1), joined((r["s"] for r in rows), "|")))
    return found


BAG_WINDOWS = """SELECT p, o, x, row_number() OVER (PARTITION BY p ORDER BY o) AS a,
    row_number() OVER (PARTITION BY p ORDER BY x DESC) AS b, lag(s) OVER (PARTITION BY p ORDER BY o) AS c,
    sum(x) OVER (PARTITION BY p ORDER BY o) AS d FROM e"""


def bag_windows(tables: Tables) -> list[Row]:
    found: list[Row] = []
    for p, group in groups(tables.e):
        rows = [dict(r) for r in ordered(group, "o", "x", "s")]
        for at, row in enumerate(rows):
            row["a"], row["c"] = at + 1, rows[at - 1]["s"] if at else None
            row["d"] = _sum(r["x"] for r in rows if order(r, "o") <= order(row, "o"))
        for at, row in enumerate(ordered(rows, "-x", "o", "s", "a")):
            found.append((p, row["o"], row["x"], row["a"], at + 1, row["c"], row["d"]))
    return found


BAG_LIMIT = "SELECT p, x FROM e ORDER BY o DESC LIMIT 3"


def bag_limit(tables: Tables) -> list[Row]:
    return [(r["p"], r["x"]) for r in ordered(tables.e, "-o", "p", "x")[:3]]


UNION = """SELECT p, first(x) AS a, collect_list(s) AS b
    FROM (SELECT p, x, s FROM t UNION ALL SELECT p, x, s FROM e) AS u GROUP BY p"""


def union(tables: Tables) -> list[Row]:
    both = [(p, ordered(rows, "x", "s")) for p, rows in groups(tables.t + tables.e)]
    return [(p, rows[0]["x"], present(r["s"] for r in rows)) for p, rows in both]


Query = tuple[str, Callable[[Tables], list[Row]]]
QUERIES: tuple[Query, ...] = (
    (GROUPED, grouped), (LISTS, lists), (SCALAR, scalar), (WINDOWS, windows), (LIMIT, limit), (TOP, top),
    (UNKEYED_LIMIT, unkeyed_limit), (BAG_GROUPED, bag_grouped), (BAG_WINDOWS, bag_windows), (BAG_LIMIT, bag_limit),
    (UNION, union),
)  # fmt: skip
