"""The figures of Jörg & Dessloch, row by row, as data."""

from __future__ import annotations

import itertools

import duckdb
import pytest
import sqlglot

from cq_engine.delta.partial.model import (
    COMPLETE,
    FLAGS,
    PRESERVED,
    UPDATED,
    UPSERTED,
    complete_changes,
    signed_changes,
    to_change_rows,
    translate_join,
)
from tests.delta.partial.world import Change, Row, World, apply
from tests.oracle.generate import TableSpec

CUST = TableSpec(
    "cust", (("cid", "INT"), ("cname", "STRING"), ("discount", "INT"), ("caddr", "INT")), ("cid",)
)
ADDR = TableSpec("addr", (("aid", "INT"), ("city", "STRING"), ("country", "STRING")), ("aid",))
CUST_OLD = [(1, "Adam", 0, 1), (2, "Bob", 0, 2), (3, "Carl", 0, 3)]
CUST_NEW = [(1, "Adam", 5, 1), (2, "Bob", 0, 4), (4, "Dave", 0, 4)]
ADDR_OLD = [(1, "Austin", "US"), (2, "Berlin", "DE"), (3, "Chemnitz", "DE")]
ADDR_NEW = [(1, "Aachen", "DE"), (2, "Berlin", "DE"), (4, "Dresden", "DE")]
"""Figure 3."""
CUST_CHANGES = [
    Change("update", (1,), CUST_OLD[0], CUST_NEW[0]),
    Change("update", (2,), CUST_OLD[1], CUST_NEW[1]),
    Change("delete", (3,), CUST_OLD[2]),
    Change("insert", (4,), None, CUST_NEW[2]),
]
ADDR_CHANGES = [
    Change("partial_update", (1,), None, ADDR_NEW[0]),
    Change("partial_delete", (3,)),
    Change("insert", (4,), None, ADDR_NEW[2]),
]
"""Example 2: a log tells of customers, change tracking of addresses."""
DIMENSION = """SELECT c.cid, c.cname, c.caddr, a.city, a.country
    FROM (SELECT cid, cname, caddr FROM cust) c JOIN (SELECT * FROM addr WHERE country = 'DE') a ON c.caddr = a.aid"""
"""Example 1."""


def _changes(query: str, *, compressed: bool = False) -> dict[Row, Change]:
    world = World((CUST, ADDR), (query,), frozenset({"cust", "addr"}))
    start = {
        "cust": [Change("insert", row[:1], None, row) for row in CUST_OLD],
        "addr": [Change("insert", row[:1], None, row) for row in ADDR_OLD],
    }
    world.commit(start)
    world.commit({"cust": CUST_CHANGES, "addr": ADDR_CHANGES})
    return {change.key: change for _, change in world.deltas(0, 1, 2, compressed=compressed)}


def test_figure_5_the_delete_insert_model() -> None:
    world = World((CUST, ADDR), ("SELECT * FROM cust",), frozenset({"cust", "addr"}))
    world.commit({"cust": CUST_CHANGES, "addr": ADDR_CHANGES})

    def signed(spec: TableSpec) -> set[Row]:
        names = [name for name, _ in spec.columns]
        return set(world.plans.run(signed_changes(f"log_{spec.name}", names, spec.key, 1, compressed=False)))

    assert signed(CUST) == {
        *((*row, 1, 1, COMPLETE) for row in CUST_NEW),
        *((*row, 1, -1, COMPLETE) for row in CUST_OLD),
    }
    assert signed(ADDR) == {
        (*ADDR_NEW[0], 1, 1, COMPLETE), (*ADDR_NEW[2], 1, 1, COMPLETE),
        (1, None, None, 1, -1, UPDATED), (3, None, None, 1, -1, UPDATED),
    }  # fmt: skip


@pytest.mark.parametrize("compressed", [False, True])
def test_figure_7_a_projection(compressed: bool) -> None:
    """The update of customer 1 has no effect."""
    assert _changes("SELECT cid, cname, caddr FROM cust", compressed=compressed) == {
        (2,): Change("update", (2,), (2, "Bob", 2), (2, "Bob", 4)),
        (3,): Change("delete", (3,), (3, "Carl", 3)),
        (4,): Change("insert", (4,), None, (4, "Dave", 4)),
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_figure_8_a_selection(compressed: bool) -> None:
    assert _changes("SELECT * FROM addr WHERE country = 'DE'", compressed=compressed) == {
        (1,): Change("upsert", (1,), None, ADDR_NEW[0]),
        (3,): Change("partial_delete", (3,)),
        (4,): Change("insert", (4,), None, ADDR_NEW[2]),
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_figure_11_a_join(compressed: bool) -> None:
    found = _changes(DIMENSION, compressed=compressed)
    assert found == {
        (1,): Change("upsert", (1,), None, (1, "Adam", 1, "Aachen", "DE")),
        (2,): Change("update", (2,), (2, "Bob", 2, "Berlin", "DE"), (2, "Bob", 4, "Dresden", "DE")),
        (3,): Change("partial_delete", (3,)),
        (4,): Change("insert", (4,), None, (4, "Dave", 4, "Dresden", "DE")),
    }
    view: dict[Row, Row] = {
        row[:1]: row for row in [(2, "Bob", 2, "Berlin", "DE"), (3, "Carl", 3, "Chemnitz", "DE")]
    }
    for change in found.values():
        apply(view, change)
    assert sorted(view) == [(1,), (2,), (4,)]


# ---------------------------------------------------------------- Figures 4 and 6

SIX = {
    "insert": (None, True),
    "update": (COMPLETE, True),
    "delete": (COMPLETE, False),
    "partial_update": (UPDATED, True),
    "upsert": (UPSERTED, True),
    "partial_delete": (UPDATED, False),
}
"""Figure 4: the flag of a kind's row in ∇, and whether it has one in ∆."""


@pytest.mark.parametrize("kind", SIX)
@pytest.mark.parametrize("compressed", [False, True])
def test_figures_4_and_6_there_and_back(kind: str, compressed: bool) -> None:
    spec = TableSpec("r", (("pk", "INT"), ("a", "INT")), ("pk",))
    world = World((spec,), ("SELECT * FROM r",), frozenset({"r"}))
    old, new = (7, 1), (7, 2)
    flag, comes = SIX[kind]
    gone = kind in ("delete", "partial_delete")
    change = Change(kind, (7,), old if kind in ("update", "delete") else None, None if gone else new)
    world.commit({"r": [change]})
    signed = world.plans.run(signed_changes("log_r", ["pk", "a"], ["pk"], 1, compressed=compressed))
    expected = {(*new, 1, 1, COMPLETE)} if comes else set()
    if flag is not None:
        expected.add((7, 1 if flag == COMPLETE else None, 1, -1, flag))
    assert set(signed) == expected
    assert [each for _, each in world.deltas(0, 0, 1, compressed=compressed)] == [change]


def _net(first: str, last: str) -> str | None:
    """The net change of two changes of one key, by what the first tells of before and the last of after."""
    before = {"insert": "no row", "update": "row", "delete": "row", "partial_update": "a row"}.get(
        first, "unknown"
    )
    if last in ("delete", "partial_delete"):
        return {"no row": None, "row": "delete"}.get(before, "partial_delete")
    return {"no row": "insert", "row": "update", "a row": "partial_update"}.get(before, "upsert")


PRESENT = {"insert": False, "update": True, "delete": True, "partial_update": True}
PAIRS = [
    (first, last)
    for first, last in itertools.product(SIX, SIX)
    if PRESENT.get(last, first not in ("delete", "partial_delete"))
    == (first not in ("delete", "partial_delete"))
    or last in ("upsert", "partial_delete")
]


@pytest.mark.parametrize(("first", "last"), PAIRS)
def test_the_net_change_of_two(first: str, last: str) -> None:
    """A key that was deleted by its key and comes back is an upsert: nobody knows whether there was a row."""
    spec = TableSpec("r", (("pk", "INT"), ("a", "INT")), ("pk",))
    world = World((spec,), ("SELECT * FROM r",), frozenset({"r"}))
    rows = {0: (7, 0), 1: (7, 1), 2: (7, 2)}

    def change(kind: str, before: int) -> Change:
        gone = kind in ("delete", "partial_delete")
        known = kind in ("update", "delete")
        return Change(kind, (7,), rows[before] if known else None, None if gone else rows[before + 1])

    world.commit({"r": [change(first, 0)]})
    world.commit({"r": [change(last, 1)]})
    found = [each for _, each in world.deltas(0, 0, 2, compressed=True)]
    assert [each.kind for each in found] == ([] if _net(first, last) is None else [_net(first, last)])
    if found and found[0].kind == "update":
        assert (found[0].old, found[0].new) == (rows[0], rows[2])


# ---------------------------------------------------------------- Figures 9 and 10

S = TableSpec("s", (("pk", "INT"), ("a", "INT")), ("pk",))
T = TableSpec("t", (("pk", "INT"), ("v", "INT")), ("pk",))
JOIN = "SELECT s.pk, s.a, t.v FROM s JOIN t ON s.a = t.pk"

FIGURE_9 = {
    # S:     pre               ins       del
    "pre": (None, "insert", "delete"),
    "insert": ("insert", "insert", None),
    "delete": ("delete", None, "delete"),
    "update": ("update", "insert", "delete"),
    "partial_update": ("partial_update", "insert", "partial_delete"),
    "upsert": ("upsert", "insert", "partial_delete"),
    "partial_delete": ("partial_delete", None, "partial_delete"),
}
"""By the change of T. The figure has the rows of an update pair of T apart (un, uo), and `-` where a deleted row of S met a
partially updated one of T in its new state; by the rule for ∇, and by Figure 10 for an old row of S, that is a partial
deletion. Partial changes of S go by themselves: `ups`, `ups`, `delk`, whatever T did, where their rows find a partner."""


def _join(s: Change | None, t: Change | None) -> list[Change]:
    world = World((S, T), (JOIN,), frozenset({"s", "t"}))
    before = {"s": [] if s is not None and s.kind == "insert" else [Change("insert", (1,), None, (1, 5))]}
    before["t"] = [] if t is not None and t.kind == "insert" else [Change("insert", (5,), None, (5, 10))]
    world.commit(before)
    world.commit({"s": [] if s is None else [s], "t": [] if t is None else [t]})
    return [change for _, change in world.deltas(0, 1, 2, compressed=False)]


def _change(kind: str, old: Row, new: Row) -> Change | None:
    if kind == "pre":
        return None
    gone = kind in ("delete", "partial_delete")
    return Change(kind, old[:1], old if kind in ("update", "delete") else None, None if gone else new)


@pytest.mark.parametrize("t_kind", FIGURE_9)
@pytest.mark.parametrize(("place", "s_kind"), [(0, "pre"), (1, "insert"), (2, "delete")])
def test_figure_9_complete_changes_of_s(t_kind: str, place: int, s_kind: str) -> None:
    found = _join(_change(s_kind, (1, 5), (1, 5)), _change(t_kind, (5, 10), (5, 11)))
    wanted = FIGURE_9[t_kind][place]
    assert [each.kind for each in found] == ([] if wanted is None else [wanted])


@pytest.mark.parametrize("t_kind", FIGURE_9)
@pytest.mark.parametrize("s_kind", ["partial_update", "upsert", "partial_delete"])
def test_figure_9_partial_changes_of_s(t_kind: str, s_kind: str) -> None:
    found = _join(_change(s_kind, (1, 5), (1, 5)), _change(t_kind, (5, 10), (5, 11)))
    partner = t_kind not in ("delete", "partial_delete") and s_kind != "partial_delete"
    assert [each.kind for each in found] == ["upsert" if partner else "partial_delete"]


NEW = ("none", "pre", "insert", "update", "partial_update", "upsert")
OLD = ("none", "pre", "update", "delete", "partial_delete", "partial_update", "upsert")


@pytest.mark.parametrize(("new", "old"), list(itertools.product(NEW, OLD)))
def test_figure_10_update_pairs_of_s(new: str, old: str) -> None:
    """The old row of S refers to row 5 of T, the new one to row 6; all 42 cells, of which the figure leaves out the first."""
    world = World((S, T), (JOIN,), frozenset({"s", "t"}))
    rows = {5: old, 6: new}
    start = [
        Change("insert", (key,), None, (key, 10))
        for key, kind in rows.items()
        if kind not in ("none", "insert")
    ]
    world.commit({"s": [Change("insert", (1,), None, (1, 5))], "t": start})
    changes = [_change(kind, (key, 10), (key, 11)) for key, kind in rows.items() if kind != "none"]
    update = Change("update", (1,), (1, 5), (1, 6))
    world.commit({"s": [update], "t": [each for each in changes if each is not None]})
    found = [change.kind for _, change in world.deltas(0, 1, 2, compressed=False)]
    flag = {"none": None, "pre": COMPLETE, "update": COMPLETE, "delete": COMPLETE, "upsert": UPSERTED}.get(
        old, UPDATED
    )
    if new == "none":
        wanted = {None: [], COMPLETE: ["delete"]}.get(flag, ["partial_delete"])
    else:
        wanted = [{None: "insert", COMPLETE: "update", UPDATED: "partial_update", UPSERTED: "upsert"}[flag]]
    assert found == wanted


def test_the_function_j() -> None:
    for flag in FLAGS:
        assert translate_join(PRESERVED, flag) == flag
        assert translate_join(COMPLETE, flag) == flag
        assert [translate_join(partial, flag) for partial in (UPDATED, UPSERTED)] == [None, None]
    assert translate_join(COMPLETE, PRESERVED) == COMPLETE
    assert translate_join(PRESERVED, PRESERVED) is None


def test_changes_are_completed_by_what_is_known() -> None:
    base = duckdb.connect()
    base.execute("CREATE TABLE log (pk INT, a INT, _change_type TEXT, _commit_version BIGINT)")
    base.execute("CREATE TABLE known (pk INT, a INT)")
    base.execute("INSERT INTO known VALUES (1, 10), (2, 20), (3, 30)")
    base.execute("""INSERT INTO log VALUES (1, 11, 'upsert', 5), (1, 12, 'partial_update', 6), (2, NULL, 'partial_delete', 5),
        (3, 30, 'delete', 5), (4, 40, 'upsert', 5), (4, NULL, 'partial_delete', 7), (9, NULL, 'partial_delete', 5)""")
    sql = complete_changes("log", "known", ["pk", "a"], ["pk"], 4)
    sql = sqlglot.transpile(sql, read="spark", write="duckdb")[0]
    assert sorted(base.execute(sql).fetchall(), key=str) == sorted(
        [
            (1, 10, "update_preimage", 5), (1, 11, "update_postimage", 5), (1, 11, "update_preimage", 6),
            (1, 12, "update_postimage", 6), (2, 20, "delete", 5), (3, 30, "delete", 5), (4, 40, "insert", 5),
            (4, 40, "delete", 7),
        ],
        key=str,
    )  # fmt: skip


def test_a_key_with_two_rows_is_told() -> None:
    sql = to_change_rows("signed", ["pk", "a"], ["pk"])
    base = duckdb.connect()
    base.execute("CREATE TABLE signed (pk INT, a INT, _v BIGINT, _w INT, _flag TEXT)")
    base.execute("INSERT INTO signed VALUES (1, 1, 1, 1, 'comp'), (1, 2, 1, 1, 'comp'), (2, 1, 1, 1, 'comp')")
    found = base.execute(sqlglot.transpile(sql, read="spark", write="duckdb")[0]).fetchall()
    assert sorted((row[0], row[-1]) for row in found) == [(1, True), (1, True), (2, False)]
