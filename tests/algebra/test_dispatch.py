"""Every node kind has a rule in every dispatcher, or a reason why it needs none there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

import cq_engine.algebra
import cq_engine.delta
import cq_engine.planner
from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.closure import closure
from cq_engine.algebra.analysis.keys import facts
from cq_engine.algebra.analysis.lineage import lineages
from cq_engine.algebra.emit import Emitter
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Node, PlanError, input_fields
from cq_engine.algebra.rewrite.deterministic_ordering import _Ordering
from cq_engine.algebra.rewrite.normal import normal_form
from cq_engine.algebra.rewrite.pruning import reads
from cq_engine.algebra.show import line
from cq_engine.delta.context import Context, delta, history
from cq_engine.delta.partial import dimension
from cq_engine.delta.partial import rules as partial_rules
from cq_engine.delta.rules import RULES
from cq_engine.delta.runtime_filters import push
from cq_engine.planner.query_group import NotGrouped, _Carrier
from cq_engine.planner.verdict import block

ROOMS = (cq_engine.algebra, cq_engine.delta, cq_engine.planner)
for room in ROOMS:
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)


def kinds(base: type[Node]) -> set[type[Node]]:
    """All node kinds of the engine, wherever they are defined, without what several of them are based on."""
    below = {found for each in base.__subclasses__() for found in (each, *kinds(each))}
    own = {each for each in below if each.__module__.startswith("cq_engine.")}
    return {each for each in own if "__dataclass_fields__" in vars(each)}


ALL = sorted(kinds(Node), key=lambda kind: kind.__name__)
DELTA = dict.fromkeys(
    (nodes.Given, nodes.Changes, nodes.History, nodes.StateRows, nodes.Empty, nodes.Edges),
    "only in delta plans",
)
"""What no defining query has."""
REWRITTEN = {nodes.SetOperation: "normal() writes it by an aggregate before"}
OTHERS = {
    kind: "no dimension view has it, and it is refused with its name"
    for kind in ALL
    if kind not in (nodes.Scan, nodes.Filter, nodes.Project, nodes.Join)
}
DISPATCHERS: dict[str, tuple[Any, Mapping[type[Node], str]]] = {
    "SQL text": (vars(Emitter)["select"].dispatcher, {}),
    "shown line": (line, {}),
    "lineage": (lineages, {}),
    "keys": (facts, DELTA),
    "functional dependencies": (closure, DELTA),
    "column pruning": (reads, DELTA),
    "deterministic ordering": (vars(_Ordering)["order"].dispatcher, DELTA),
    "normal form": (normal_form, DELTA),
    "verdict": (block, DELTA),
    "runtime filters": (push, DELTA),
    "partial deltas": (partial_rules._signed, OTHERS),
}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", DISPATCHERS)
def test_every_kind_is_known_or_not_applicable(name: str, kind: type[Node]) -> None:
    dispatcher, not_applicable = DISPATCHERS[name]
    known = dispatcher.dispatch(kind) is not dispatcher.dispatch(Node)
    assert known != (kind in not_applicable), f"{name}: {kind.__name__} has {'a' if known else 'no'} rule"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_kind_has_a_delta_rule_or_needs_none(kind: type[Node]) -> None:
    assert (kind in RULES) != (kind in {**DELTA, **REWRITTEN})


class Forgotten(Node):
    """A node kind that nobody knows."""


@pytest.mark.parametrize("name", DISPATCHERS)
def test_a_forgotten_kind_is_an_error(name: str) -> None:
    dispatcher, _ = DISPATCHERS[name]
    default: Callable[..., object] = dispatcher.dispatch(Forgotten)
    arguments = default.__code__.co_argcount - (1 if name in ("SQL text", "deterministic ordering") else 0)
    rest = [None] * (arguments - 1)
    bound = default.__get__(object()) if name in ("SQL text", "deterministic ordering") else default
    with pytest.raises(PlanError, match="Forgotten"):
        bound(Forgotten(), *rest)


@pytest.mark.parametrize("rule", [delta, history])
def test_a_kind_without_a_delta_rule_is_an_error(rule: Callable[[Node, Context], Node]) -> None:
    with pytest.raises(PlanError, match="Forgotten"):
        rule(Forgotten(), Context(RULES, Names(), frozenset()))


def test_no_dispatcher_is_forgotten() -> None:
    """Whatever dispatches on a node stands in the table above."""
    known = {id(dispatcher.dispatch(Node)) for dispatcher, _ in DISPATCHERS.values()}
    found = {}
    for room in ROOMS:
        for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            module = importlib.import_module(info.name)
            holders = [module, *(each for each in vars(module).values() if isinstance(each, type))]
            for holder in holders:
                for name, held in vars(holder).items():
                    value = getattr(held, "dispatcher", held)
                    if hasattr(value, "registry") and any(kind in value.registry for kind in ALL):
                        found[id(value.dispatch(Node))] = f"{module.__name__}.{name}"
    with pytest.raises(NotGrouped, match="Forgotten"):  # what it does not know is refused
        vars(_Carrier)["_carry"].dispatcher.dispatch(Node)(None, Forgotten(), frozenset())
    known.add(id(vars(_Carrier)["_carry"].dispatcher.dispatch(Node)))
    search = dimension._Search(lambda _: (), lambda node: type(node).__name__)
    with pytest.raises(dimension.NotDimension):  # likewise
        dimension._rows(Forgotten(), search)
    known.add(id(dimension._rows.dispatch(Node)))
    assert {place for each, place in found.items() if each not in known} == set()


NOT_READ = {(nodes.Changes, "scan"): "names the table", (nodes.History, "scan"): "names the table"}
"""Fields that hold nodes which are no inputs."""


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_fields_with_nodes_are_inputs(kind: type[Node]) -> None:
    hints = get_type_hints(kind)
    for each in fields(kind):
        holds = [hints[each.name], *get_args(hints[each.name])]
        if any(isinstance(part, type) and issubclass(part, Node) for part in holds):
            assert (each.name in input_fields(kind)) != ((kind, each.name) in NOT_READ)
