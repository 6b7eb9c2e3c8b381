"""Views that cannot be, the tree of a view, and the net change of a transaction."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from cq_engine.sources.sweep.model import Change, Edge, Relation, View
from cq_engine.sources.sweep.rows import net, settled

R, S, T = (Relation(name, name.upper(), ("k",), ("k", "a")) for name in "rst")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Relation("r", "s", (), ("a",)), "has no key"),
        (lambda: Relation("r", "s", ("k",), ("a",)), "not among its columns"),
        (lambda: View((), ()), "names of their own"),
        (lambda: View((R, R), ()), "names of their own"),
        (lambda: View((R, S), ()), "connected"),
        (lambda: View((R, S, T), (Edge(("r", "a"), ("s", "a")),)), "connected"),
        (lambda: View((R, S), (Edge(("r", "a"), ("s", "z")),)), "s.z"),
        (lambda: View((R, S), (Edge(("q", "a"), ("s", "a")),)), "q.a"),
        (lambda: View((R,), (Edge(("r", "a"), ("r", "k")),)), "to itself"),
    ],
)
def test_views_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_view_of_one_relation_asks_nobody() -> None:
    assert View((R,), ()).sweep_order("r") == ()


def test_edges_between_two_relations_are_one_link() -> None:
    view = View((R, S), (Edge(("r", "a"), ("s", "k")), Edge(("s", "a"), ("r", "k"))))
    [link] = view.links["s"]
    assert (link.near, link.near_columns, link.far, link.far_columns) == ("s", ("k", "a"), "r", ("a", "k"))


def test_sweeps_go_along_a_tree_of_a_circle_of_joins() -> None:
    view = View(
        (R, S, T),
        (Edge(("r", "a"), ("s", "a")), Edge(("s", "k"), ("t", "k")), Edge(("t", "a"), ("r", "k"))),
    )
    assert {name: {link.far for link in links} for name, links in view.links.items()} == {
        "r": {"s", "t"},
        "s": {"r"},
        "t": {"r"},
    }
    assert [[link.far for link in level] for level in view.sweep_order("s")] == [["r"], ["t"]]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([(None, (1, 2))], {(1,): (None, (1, 2))}),
        ([((1, 2), (1, 3)), ((1, 3), (1, 4))], {(1,): ((1, 2), (1, 4))}),
        ([((1, 2), (1, 3)), ((1, 3), (1, 2))], {}),
        ([(None, (1, 2)), ((1, 2), None)], {}),
        ([((1, 2), (2, 2))], {(1,): ((1, 2), None), (2,): (None, (2, 2))}),
        # Two keys are exchanged in one statement: for a while, a key has two rows.
        (
            [((1, "a"), (2, "a")), ((2, "b"), (1, "b"))],
            {(1,): ((1, "a"), (1, "b")), (2,): ((2, "b"), (2, "a"))},
        ),
        ([((1, math.nan), (1, float("nan")))], {}),
    ],
)
def test_the_net_change_of_a_transaction(changes: list, expected: dict) -> None:  # type: ignore[type-arg]
    found = net([Change("r", *images) for images in changes], lambda row: row[:1])
    assert found == expected


def test_two_rows_of_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows"):
        net([Change("r", None, (1, 2)), Change("r", None, (1, 3))], lambda row: row[:1])


def test_one_nan_stands_for_all() -> None:
    assert settled((1, float("nan"))) == settled((1, -float("nan")))
