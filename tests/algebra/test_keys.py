"""Derived result keys, checked by hand."""

from __future__ import annotations

import pytest

from cq_engine.algebra.analysis.keys import TableKeys, covers, result_key
from cq_engine.algebra.analysis.lineage import column_types
from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.lowering.lower import lower
from cq_engine.algebra.names import Names

TABLES = {
    "orders": ("o", "cust", "item", "qty"),
    "items": ("i", "name", "kind"),
    "lines": ("o", "n", "item"),
    "events": ("at", "what"),
}
KEYS = {"orders": ("o",), "items": ("i",), "lines": ("o", "n"), "events": None}

CASES = (
    ("SELECT o, qty FROM orders", ("o",)),
    ("SELECT qty FROM orders", None),
    ("SELECT qty AS a, o AS b FROM orders", ("b",)),
    ("SELECT o + 1 AS o FROM orders", None),
    ("SELECT at, what FROM events", None),
    ("SELECT DISTINCT at, what FROM events", ("at", "what")),
    # A table joined on its full key adds nothing.
    ("SELECT orders.o, name FROM orders JOIN items ON item = i", ("o",)),
    ("SELECT i, o FROM orders JOIN items ON item = i", ("o",)),
    # A key is known up to columns that are equal.
    ("SELECT l.o, n, r.qty FROM lines l JOIN orders r ON l.o = r.o", ("o", "n")),
    ("SELECT r.o, n, r.qty FROM lines l JOIN orders r ON l.o = r.o", ("o", "n")),
    ("SELECT r.o, r.qty FROM lines l JOIN orders r ON l.o = r.o", None),
    # Not on the key: both keys are needed.
    ("SELECT a.o, b.i FROM orders a JOIN items b ON a.qty < b.i", ("o", "i")),
    ("SELECT a.o FROM orders a JOIN items b ON a.qty < b.i", None),
    ("SELECT a.o, b.o AS p FROM orders a, orders b", ("o", "p")),
    ("SELECT a.o FROM orders a JOIN events e ON a.o = e.at", None),
    ("SELECT l.o, n, r.qty FROM lines l JOIN orders r ON l.o <=> r.o", ("o", "n")),
    # A subquery has one value for each row, however it is found.
    ("SELECT o, (SELECT max(n) FROM lines WHERE lines.o = orders.o) AS m FROM orders", ("o",)),
    ("SELECT o, (SELECT max(n) FROM lines WHERE lines.o < orders.qty) AS m FROM orders", ("o",)),
    ("SELECT o, EXISTS (SELECT 1 FROM lines WHERE lines.o = orders.o) AS m FROM orders", ("o",)),
    ("SELECT o, qty NOT IN (SELECT n FROM lines) AS m FROM orders", ("o",)),
    # A chain of look-ups.
    ("SELECT l.o, l.n FROM lines l JOIN orders r ON l.o = r.o JOIN items i ON r.item = i.i", ("o", "n")),
    # A constant part needs not be shown.
    ("SELECT n, item FROM lines WHERE o = 5", ("n",)),
    ("SELECT qty FROM orders WHERE o = 5", ()),
    ("SELECT qty FROM orders WHERE o = 5 OR o = 6", None),
    ("SELECT cust, count(*) AS c FROM orders GROUP BY cust", ("cust",)),
    ("SELECT count(*) AS c FROM orders GROUP BY cust", None),
    ("SELECT count(*) AS c FROM orders", ()),
    ("SELECT o, cust, count(*) AS c FROM orders GROUP BY o, cust", ("o",)),
    # Group keys that another one fixes, over joins and derived tables.
    (
        "SELECT l.o, r.cust, count(*) AS c FROM lines l JOIN orders r ON l.o = r.o GROUP BY l.o, r.cust",
        ("o",),
    ),
    ("SELECT r.cust, l.o, sum(n) AS c FROM lines l JOIN orders r ON l.o = r.o GROUP BY r.cust, l.o", ("o",)),
    (
        "SELECT r.cust, l.n, sum(r.o) AS c FROM lines l JOIN orders r ON l.o = r.o GROUP BY r.cust, l.n",
        ("cust", "n"),
    ),
    (
        "SELECT i.name, r.o, count(*) AS c FROM orders r JOIN items i ON r.item = i.i GROUP BY i.name, r.o",
        ("o",),
    ),
    (
        "SELECT i.name, r.o, count(*) AS c FROM orders r JOIN items i ON r.qty < i.i GROUP BY i.name, r.o",
        ("name", "o"),
    ),
    (
        "SELECT l.o, k, count(*) AS c FROM lines l JOIN (SELECT o, upper(cust) AS k FROM orders) r ON l.o = r.o"  # noqa: ISC004
        " GROUP BY l.o, k",
        ("o",),
    ),
    ("SELECT cust, c FROM (SELECT cust, count(*) AS c FROM orders GROUP BY cust) WHERE c > 1", ("cust",)),
    ("SELECT o FROM orders UNION ALL SELECT i FROM items", None),
    ("SELECT o FROM orders UNION SELECT i FROM items", ("o",)),
    ("SELECT o FROM orders EXCEPT ALL SELECT i FROM items", ("o",)),
    ("SELECT cust FROM orders EXCEPT ALL SELECT i FROM items", None),
    ("SELECT cust FROM orders INTERSECT SELECT i FROM items", ("cust",)),
    ("SELECT o, qty FROM orders ORDER BY qty, o LIMIT 3", ("o",)),
    ("SELECT qty FROM orders ORDER BY qty, o LIMIT 1", ()),
    ("SELECT o, row_number() OVER (PARTITION BY cust ORDER BY o) AS r FROM orders", ("o",)),
    ("SELECT a.o, name FROM orders a LEFT JOIN items b ON a.item = b.i", ("o",)),
    ("SELECT a.o, b.i FROM orders a LEFT JOIN items b ON a.qty < b.i", ("o", "i")),
    ("SELECT a.o FROM orders a RIGHT JOIN items b ON a.item = b.i", None),
    ("SELECT a.o, b.i FROM orders a FULL JOIN items b ON a.item = b.i", ("o", "i")),
    # A LEFT JOIN keeps what is known of its left side; of the right side NULL takes the place.
    (
        "SELECT r.o, r.cust, sum(n) AS c FROM orders r LEFT JOIN lines l ON l.o = r.o GROUP BY r.o, r.cust",
        ("o",),
    ),
    (
        "SELECT r.o, r.cust, sum(n) AS c FROM lines l RIGHT JOIN orders r ON l.o = r.o GROUP BY r.o, r.cust",
        ("o",),
    ),
    (
        "SELECT r.o, r.cust, count(*) AS c FROM orders r FULL JOIN lines l ON l.o = r.o GROUP BY r.o, r.cust",
        ("o", "cust"),
    ),
    (
        "SELECT b.i, b.name, count(*) AS c FROM orders a LEFT JOIN items b ON a.item = b.i GROUP BY b.i, b.name",
        ("i", "name"),
    ),
    (
        "SELECT a.item, b.i, count(*) AS c FROM orders a LEFT JOIN items b ON a.item = b.i GROUP BY a.item, b.i",
        ("item", "i"),
    ),
    ("SELECT a.n FROM (SELECT o, n FROM lines WHERE o = 1) a LEFT JOIN items b ON a.n = b.i", ("n",)),
    (
        "SELECT b.n, a.i FROM items a LEFT JOIN (SELECT o, n FROM lines WHERE o = 1) b ON a.i < b.n",
        ("n", "i"),
    ),
    (
        "SELECT o, cust, count(*) AS c FROM orders r JOIN events e ON r.o < e.at"  # noqa: ISC004
        " WHERE EXISTS (SELECT 1 FROM items WHERE i = item) GROUP BY o, cust",
        ("o",),
    ),
    # Two NULL keys, each unmatched, are two rows with one key.
    (
        "SELECT a.cust, b.kind FROM (SELECT cust FROM orders GROUP BY cust) a"  # noqa: ISC004
        " FULL JOIN (SELECT kind FROM items GROUP BY kind) b ON a.cust = b.kind",
        None,
    ),
)


def table_key(name: str) -> tuple[str, ...] | None:
    return KEYS[name]


@pytest.mark.parametrize(("query", "expected"), CASES)
def test_result_key(query: str, expected: tuple[str, ...] | None) -> None:
    tree = parse_expression(query)
    lowered = lower(tree, TABLES, Names())
    shown = dict(zip(lowered.outputs, (s.alias_or_name for s in tree.selects)))
    found = result_key(lowered.node, lowered.outputs, table_key)
    assert (None if found is None else tuple(shown[name] for name in found)) == expected


@pytest.mark.parametrize(
    ("declared", "expected"), [(("o",), True), (("o", "qty"), True), (("qty",), False), ((), False)]
)
def test_declared_key_covers_a_derived_one(declared: tuple[str, ...], expected: bool) -> None:
    lowered = lower(parse_expression("SELECT o, qty FROM orders"), TABLES, Names())
    by_name = dict(zip(("o", "qty"), lowered.outputs))
    assert covers(lowered.node, [by_name[d] for d in declared], lowered.outputs, table_key) is expected


TYPES = {
    ("orders", "o"): "int",
    ("orders", "item"): "string",
    ("orders", "qty"): "double",
    ("items", "i"): "int",
    ("items", "name"): "string collate UTF8_LCASE",
}
CONVERSIONS = (
    # '1' and '01' are both equal to 1: the join with items does not make `item` one value.
    ("SELECT i.i FROM orders o JOIN items i ON o.item = i.i", None),
    ("SELECT qty FROM orders WHERE item = 1", None),
    ("SELECT a.o FROM orders a JOIN items b ON a.o = b.i", ("o",)),
    ("SELECT qty FROM orders WHERE o = 1", ()),
    ("SELECT qty FROM orders WHERE o = 1.0", ()),
    ("SELECT o FROM orders WHERE o = 1e0", ("o",)),
    # What can tell equal values apart is not determined by them.
    ("SELECT cust, cust + 1 AS k, count(*) AS c FROM orders GROUP BY cust, cust + 1", ("cust",)),
    (
        "SELECT qty, CAST(qty AS STRING) AS k, count(*) AS c FROM orders GROUP BY qty, CAST(qty AS STRING)",
        ("qty", "k"),
    ),
    # But a table's key fixes the row, with every value as it is.
    (
        "SELECT r.o, CAST(qty AS STRING) AS k, count(*) AS c FROM orders r JOIN events e ON e.at < r.o"  # noqa: ISC004
        " GROUP BY r.o, CAST(qty AS STRING)",
        ("o",),
    ),
    (
        "SELECT cust, CAST(qty AS STRING) AS k, count(*) AS c FROM orders r JOIN events e ON e.at < r.o"  # noqa: ISC004
        " GROUP BY cust, CAST(qty AS STRING)",
        ("cust", "k"),
    ),
    ("SELECT name, ascii(name) AS k, count(*) AS c FROM items GROUP BY name, ascii(name)", ("name", "k")),
)


@pytest.mark.parametrize(("query", "expected"), CONVERSIONS)
def test_an_equality_with_a_conversion_derives_nothing(query: str, expected: tuple[str, ...] | None) -> None:
    tree = parse_expression(query)
    lowered = lower(tree, TABLES, Names())
    keys = {**KEYS, "orders": ("o",), "items": ("i",)}
    if "item = " in query and "JOIN" not in query:
        keys["orders"] = ("item",)
    if "o.item" in query:
        keys["orders"] = ("item",)
    types = column_types(lowered.node, lambda table, name: TYPES.get((table, name), "bigint"))
    shown = dict(zip(lowered.outputs, (s.alias_or_name for s in tree.selects)))
    found = result_key(lowered.node, lowered.outputs, TableKeys(keys.__getitem__, types))
    assert (None if found is None else tuple(shown[name] for name in found)) == expected
