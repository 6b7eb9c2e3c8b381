"""The result of a query from what is stored for it: its plan with the states in the place of the aggregates."""

from __future__ import annotations

from collections.abc import Callable

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import Aggregate, Node
from cq_engine.algebra.rebuild import rebuild
from cq_engine.delta.aggregate import stored_values
from cq_engine.planner.compiled import Compiled

__all__ = ["stored_result", "stored_result_sql"]


def stored_result(compiled: Compiled) -> Node | None:
    """The plan whose stored aggregates, from the top, are read and not computed; None where nothing is stored."""
    if compiled.node is None or not compiled.stored:
        return None
    states = {id(each.node): each.state for each in compiled.stored}

    def read(node: Node) -> Node:
        state = states.get(id(node))
        return node if state is None or not isinstance(node, Aggregate) else stored_values(node, state)

    return rebuild(compiled.node, lambda node: node, read)


def stored_result_sql(
    compiled: Compiled, plan: Node, width: int, leaves: Callable[[Node], str], member: int | None = None
) -> str:
    """The statement for `stored_result`: the first `width` columns; of a query group's plan the rows of one member."""
    pairs = list(zip(compiled.outputs, compiled.columns))
    shown = ", ".join(f"CAST({quote(o)} AS {c.type}) AS {quote(c.name)}" for o, c in pairs[:width])
    only = "" if member is None else f" WHERE {quote(compiled.outputs[-1])} = {member}"
    return Emitter(leaves).statement(f"SELECT {shown} FROM {{0}}{only}", plan)
