"""Every node kind has a rule in every dispatcher that must know it."""

from __future__ import annotations

import pytest

from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.keys import facts
from cq_engine.algebra.emit import Emitter
from cq_engine.algebra.nodes import Node
from cq_engine.delta.context import delta_rule, history_rule
from cq_engine.planner import delta_plan

ALL = {kind for kind in vars(nodes).values() if isinstance(kind, type) and issubclass(kind, Node)} - {Node}
ONLY_IN_DELTA_PLANS = {nodes.Given, nodes.Changes, nodes.History, nodes.StateRows, nodes.Empty, nodes.Edges}
DEFINING = ALL - ONLY_IN_DELTA_PLANS
NEVER_CHANGES = {nodes.Values}
REWRITTEN = {nodes.SetOperation}
"""Kinds that `algebra.normal` writes by others before a delta is planned."""


def test_rules_are_imported_by_the_planner() -> None:
    assert delta_plan.plan_delta


@pytest.mark.parametrize("kind", sorted(ALL, key=lambda k: k.__name__))
def test_emitter(kind: type[Node]) -> None:
    dispatcher = vars(Emitter)["select"].dispatcher
    assert dispatcher.dispatch(kind) is not dispatcher.dispatch(Node)


@pytest.mark.parametrize("kind", sorted(DEFINING, key=lambda k: k.__name__))
def test_facts(kind: type[Node]) -> None:
    assert facts.dispatch(kind) is not facts.dispatch(Node)


@pytest.mark.parametrize("kind", sorted(DEFINING - NEVER_CHANGES - REWRITTEN, key=lambda k: k.__name__))
def test_delta(kind: type[Node]) -> None:
    assert delta_rule.dispatch(kind) is not delta_rule.dispatch(Node)


@pytest.mark.parametrize("kind", sorted(DEFINING - REWRITTEN, key=lambda k: k.__name__))
def test_history(kind: type[Node]) -> None:
    assert history_rule.dispatch(kind) is not history_rule.dispatch(Node)
