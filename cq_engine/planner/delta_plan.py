"""The delta plan of one refresh: from the compiled query and what changed in (a, b] to one Spark SQL statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO, Empty, Node
from cq_engine.delta import aggregate as _aggregate  # noqa: F401  the rules register themselves
from cq_engine.delta import distinct as _distinct  # noqa: F401
from cq_engine.delta import join as _join  # noqa: F401
from cq_engine.delta import linear as _linear  # noqa: F401
from cq_engine.delta import partitioned as _partitioned  # noqa: F401
from cq_engine.delta.aggregate import accumulated
from cq_engine.delta.context import Context, delta, touched
from cq_engine.planner.compiled import Compiled, StoredAggregate
from cq_engine.planner.finish import log_rows

__all__ = ["DeltaPlan", "plan_delta"]


@dataclass(frozen=True)
class Output:
    """One output of the statement: the delta log's rows (`state` None), or new rows of a state."""

    state: StoredAggregate | None
    sql: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class DeltaPlan:
    """`statement` gives the rows of all outputs side by side: of a row with `_out` = n the columns `dn_*` are set."""

    outputs: tuple[Output, ...]
    with_clause: str

    @property
    def statement(self) -> str:
        parts = []
        for number, output in enumerate(self.outputs):
            shown = [f"{number} AS _out"]
            for other, each in enumerate(self.outputs):
                own = other == number
                shown += [f"{quote(c) if own else 'NULL'} AS d{other}_{i}" for i, c in enumerate(each.columns)]
            parts.append(f"SELECT {', '.join(shown)} FROM (\n{output.sql}\n)")
        return f"{self.with_clause}{' UNION ALL '.join(parts)}"

    def names(self, number: int) -> list[tuple[str, str]]:
        """(name in the statement, the output's own name) of the columns of output `number`."""
        return [(f"d{number}_{i}", c) for i, c in enumerate(self.outputs[number].columns)]


def plan_delta(
    compiled: Compiled,
    changed: frozenset[str],
    insert_only: bool,
    leaves: Callable[[Node], str],
    attach: Callable[[Emitter], None],
) -> DeltaPlan | None:
    """The plan for an interval in which the tables `changed` have changes; None where the result cannot change.

    `leaves` gives the relation of a leaf, `attach` is called with the emitter before (it may add CTEs).
    """
    assert compiled.node is not None
    stored = {id(each.node): each.state for each in compiled.states}
    context = Context(compiled.names, changed, stored, insert_only)
    root = delta(compiled.node, context)
    if isinstance(root, Empty):
        return None
    states = [each for each in compiled.states if touched(each.node, context)]
    roots = [root, *(accumulated(each.node, context) for each in states)]
    emitter = Emitter(leaves)
    attach(emitter)
    bodies = emitter.bodies(*roots)
    log = (*(c.name for c in compiled.columns), "_change_type", "_commit_version", "_sequence", "_duplicate")
    outputs = [Output(None, _log(bodies[0], compiled), log)]
    for each, body, node in zip(states, bodies[1:], roots[1:]):
        outputs.append(Output(each, _state(body, node, each), (*(c.name for c in each.columns), "_most")))
    with_clause = ""
    if emitter.ctes:
        with_clause = "WITH " + ",\n".join(f"{name} AS (\n{sql}\n)" for name, sql in emitter.ctes.items()) + "\n"
    return DeltaPlan(tuple(outputs), with_clause)


def _log(relation: str, compiled: Compiled) -> str:
    inner = log_rows(relation, compiled.outputs, compiled.key_outputs)
    shown = [f"{quote(o)} AS {quote(c.name)}" for o, c in zip(compiled.outputs, compiled.columns)]
    return f"SELECT {', '.join(shown)}, _change_type, _commit_version, _sequence, _duplicate FROM ({inner})"


def _state(relation: str, node: Node, stored: StoredAggregate) -> str:
    """The last version of each affected group, as rows of its state, and the most rows a group had at any commit."""
    own = [name for name in node.columns if name not in (FROM, TO)]
    shown = [f"{quote(name)} AS {quote(c.name)}" for name, c in zip(own, stored.columns)]
    count = quote(own[len(stored.keys)])
    keys = ", ".join(map(quote, own[: len(stored.keys)]))
    most = f"max(CASE WHEN {FROM} > {BEFORE} THEN {count} END) OVER ({'PARTITION BY ' + keys if keys else ''})"
    return (
        f"SELECT {', '.join(shown)}, _most FROM (SELECT *, {most} AS _most FROM {relation})"
        f" WHERE {TO} = {FOREVER} AND {FROM} > {BEFORE}"
    )
