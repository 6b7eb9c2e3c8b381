"""The choice of a form: from statistics of the interval, with a reason that a person can read."""

from __future__ import annotations

import pytest
from sqlglot import parse_one

from cq_engine.algebra.analysis.lineage import change_columns
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    Changes,
    Filter,
    Given,
    History,
    Join,
    Node,
    OuterJoin,
    Project,
    Scan,
    UnionAll,
    column,
)
from cq_engine.catalog import apply
from cq_engine.catalog.model import CatalogState
from cq_engine.delta import join as _join  # noqa: F401  the rules register themselves
from cq_engine.delta import linear as _linear  # noqa: F401
from cq_engine.delta.context import Context, delta
from cq_engine.delta.rules import RULES
from cq_engine.grammar import CreateTable, parse
from cq_engine.planner.forms import (
    Decision,
    LookUp,
    Reference,
    Statistics,
    TableStatistics,
    choose,
    references,
    worth_counting,
)
from cq_engine.planner.terms import terms

NEW, GONE, CHANGED = frozenset({"INSERT"}), frozenset({"DELETE"}), frozenset({"UPDATE"})
LINE_OF = Reference("lines", ("o",), "orders", ("o",), 0)


def of(
    *changed: tuple[int, frozenset[str]], keys: tuple[Reference, ...] = (LINE_OF,), per_commit: bool = False
) -> Statistics:
    """Statistics of orders (1 M rows) and lines (10 M rows)."""
    orders, lines = (*changed, (0, frozenset()))[:2]
    return Statistics(
        (
            TableStatistics("orders", 1_000_000, *orders, ("o",)),
            TableStatistics("lines", 10_000_000, *lines, ("o", "n")),
        ),
        keys,
        per_commit,
    )


@pytest.mark.parametrize(
    ("statistics", "form", "reason"),
    [
        (of((200, NEW), (2_000, NEW)), "fk_pk_units", "orders, lines changed"),
        (of((200, GONE), (0, frozenset())), "fk_pk", "orders changed, and lines (o) REFERENCES orders (o)"),
        (of((200, GONE), (0, frozenset()), keys=()), "general", "no foreign key refers to it"),
        (of((0, frozenset()), (2_000, NEW)), "general", "no foreign key refers to it"),
        (of((2_000_000, CHANGED), (20_000_000, CHANGED)), "recompute", "22000000 change rows are more than the 11000000 rows"),
        (of((2_000_000, CHANGED), (20_000_000, CHANGED), per_commit=True), "fk_pk_units", "changed"),
        (of((2_000_000, CHANGED), (0, frozenset())), "fk_pk", "REFERENCES"),
    ],
)  # fmt: skip
def test_statistics_choose(statistics: Statistics, form: str, reason: str) -> None:
    decision = choose(statistics)
    assert decision.form == form
    assert reason in decision.reasons[0]
    assert decision.undo


def test_a_small_interval_over_small_tables_is_not_recomputed() -> None:
    small = Statistics((TableStatistics("t", 3, 90_000, NEW, ("k",)),))
    assert choose(small).form == "general"


def test_rows_that_changed_before_the_interval_are_at_hand_too() -> None:
    lines = TableStatistics("lines", 10, 5, NEW, ("o", "n"))
    orders = TableStatistics("orders", 10, key=("o",), recent=3)
    decision = choose(Statistics((lines, orders)))
    assert decision.form == "fk_pk_units"
    assert "orders changed since the last snapshot" in decision.reasons[0]
    twice = TableStatistics("staff", 10, 1, NEW, ("id",), scans=2)
    assert choose(Statistics((twice,))).form == "fk_pk_units"


@pytest.mark.parametrize("form", ["general", "fk_pk", "fk_pk_units", "recompute"])
@pytest.mark.parametrize("pre_image", ["undo", "sql"])
def test_options_decide(form: str, pre_image: str) -> None:
    decision = choose(of((200, NEW), (2_000, NEW)), form, pre_image)
    assert (decision.form, decision.pre_image) == (form, pre_image)
    assert decision.reasons == (
        f"WITH (form = '{form}') asks for it", f"WITH (pre_image = '{pre_image}') asks for it",
    )  # fmt: skip
    assert decision.keys == (form in ("fk_pk", "fk_pk_units"))
    assert decision.units == (form == "fk_pk_units")
    assert str(decision) == (form if pre_image == "undo" else f"{form}, pre-image by sql")


def test_keys_are_counted_where_a_scan_would_read_more() -> None:
    assert worth_counting(1_000, 1_000_000)
    assert not worth_counting(1_000_000, 1_000)


def test_only_promised_keys_among_the_tables_are_relied_on() -> None:
    state = CatalogState()
    for text in (
        "CREATE TABLE p (a INT, b STRING, PRIMARY KEY (a, b))",
        "CREATE TABLE enforced (x STRING, y INT, k INT PRIMARY KEY, FOREIGN KEY (x, y) REFERENCES p (b, a) ENFORCED)",
        "CREATE TABLE relied (k INT PRIMARY KEY, x INT, y STRING, FOREIGN KEY (x, y) REFERENCES p RELY)",
        "CREATE TABLE hoped (k INT PRIMARY KEY, x INT, y STRING, FOREIGN KEY (x, y) REFERENCES p)",
    ):
        statement = parse(text)
        assert isinstance(statement, CreateTable)
        state = apply.create_table(state, statement, version=4)
    sources = {name: table.storage.id for name, table in state.tables.items()}
    found = references(state, sources)
    assert found == (
        Reference("enforced", ("y", "x"), "p", ("a", "b"), 4),
        Reference("relied", ("x", "y"), "p", ("a", "b"), 4),
    )
    del sources["p"]
    assert references(state, sources) == ()
    assert references(state, {**sources, "p": 99}) == (), "another table of that name"


def test_look_ups_in_words() -> None:
    assert str(LookUp("orders", ("o",), 20, in_changes=15, left=5)) == (
        "orders by o: 20 keys wanted, 15 in its own change rows, 5 to be read"
    )
    assert str(LookUp("lines", ("o",), 3, without_rows=3)).endswith("nothing to be read")
    assert (
        str(LookUp("lines", ("o",), None, left=2)) == "lines by o: keys of change rows wanted, 2 to be read"
    )


# ------------------------------------------------------------------------------------------------ terms


def plan(changed: set[str]) -> Node:
    """The delta of lines ⋈ orders."""
    lines = Scan("lines", (("o_1", "o"), ("item_2", "item")))
    orders = Scan("orders", (("o_3", "o"), ("note_4", "note")))
    return delta(
        Join((lines, orders), (parse_one("o_1 = o_3"),)), Context(RULES, Names(), frozenset(changed))
    )


def test_terms_of_units() -> None:
    statistics = of((200, NEW), (2_000, NEW))
    said = terms([plan({"lines", "orders"})], statistics, choose(statistics))
    assert said == (
        "orders by o, the keys of changed lines: only keys that are not in its own 200 change rows",
        f"lines by o, the keys of changed orders: no unchanged row, because {LINE_OF} and all of those came or went",
    )


def test_terms_of_updates_and_without_a_key() -> None:
    statistics = of((200, CHANGED), (0, frozenset()))
    assert terms([plan({"orders"})], statistics, choose(statistics)) == (
        f"lines by o, the keys of changed orders: not by keys of orders that came or went, because {LINE_OF}",
    )
    assert terms([plan({"orders"})], statistics, Decision("general")) == (
        "lines by o, the keys of changed orders",
    )
    bare = History(Scan("lines", (("o_1", "o"),)))
    assert terms([bare], statistics, Decision("general")) == ("lines: all of its 10000000 rows",)


# ------------------------------------------------------------------------------------------------ lineage


def changes(number: int) -> Changes:
    return Changes(Scan(f"t{number}", ((f"k_{number}", "k"), (f"x_{number}", "x"))))


def test_origins_follow_columns_down_to_change_rows() -> None:
    one, two = changes(1), changes(2)
    history = Project(History(Scan("t3", (("k_3", "k"),))), (("k_3", column("k_3")),))
    joined = Join((history, Filter(one, parse_one("x_1 > 1"))), (parse_one("k_3 = k_1"),))
    assert change_columns(joined, "k_3") == frozenset({("t1", "k")})
    assert change_columns(joined, "x_1") == frozenset({("t1", "x")})
    both = UnionAll((Project(one, (("a", column("k_1")),)), Project(two, (("b", column("x_2")),))), ("c",))
    assert change_columns(both, "c") == frozenset({("t1", "k"), ("t2", "x")})


def test_origins_give_up_where_other_rows_have_values_too() -> None:
    one, history = changes(1), History(Scan("t3", (("k_3", "k"),)))
    assert change_columns(history, "k_3") is None
    assert change_columns(Given("block", ("k_5",)), "k_5") is None
    assert change_columns(Project(one, (("a", parse_one("k_1 + 1")),)), "a") is None
    assert change_columns(OuterJoin(one, history, "LEFT", (parse_one("k_1 = k_3"),)), "k_3") is None
    mixed = UnionAll(
        (Project(one, (("a", column("k_1")),)), Project(history, (("b", column("k_3")),))), ("c",)
    )
    assert change_columns(mixed, "c") is None
