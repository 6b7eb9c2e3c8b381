"""An operator that is added as CONTRIBUTING.md says: in this file only, with its rules in every pass."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from sqlglot import exp, parse_one

from cq_engine.algebra.analysis.closure import TableKey, closure
from cq_engine.algebra.analysis.equality import Equality
from cq_engine.algebra.analysis.keys import Facts, facts
from cq_engine.algebra.analysis.lineage import ColumnOf, Lineage, Lineages, column_types, lineages
from cq_engine.algebra.emit import Emitter, quote, sql_of
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Node, Scan, children, references, with_children
from cq_engine.algebra.rewrite.deterministic_ordering import _Ordering
from cq_engine.algebra.rewrite.normal import Present, normal, normal_form
from cq_engine.algebra.rewrite.pruning import prune, reads
from cq_engine.algebra.show import explain, line
from cq_engine.delta.context import Context, Rule, delta, history
from cq_engine.delta.rules import RULES


@dataclass(frozen=True, eq=False)
class Sample(Node):
    """The rows of which the hash of `key` is below `share` hundredths."""

    input: Node
    key: exp.Expr
    share: int

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@Emitter.select.register(Sample)
def _sql(emitter: Emitter, node: Sample) -> str:
    columns = ", ".join(map(quote, node.columns))
    return (
        f"SELECT {columns} FROM {emitter.relation(node.input)}"
        f" WHERE pmod(hash({sql_of(node.key)}), 100) < {node.share}"
    )


@line.register
def _line(node: Sample) -> str:
    return f"Sample {node.share} BY {sql_of(node.key)}"


@lineages.register
def _lineages(node: Sample) -> Lineages:
    return {name: Lineage((ColumnOf(node.input, name),)) for name in node.columns}


@facts.register
def _keys(node: Sample, table_key: TableKey) -> Facts:
    return facts(node.input, table_key)


@closure.register
def _closure(node: Sample, fixed: frozenset[str], table_key: TableKey, equality: Equality) -> frozenset[str]:
    return closure(node.input, fixed, table_key, equality)


@reads.register
def _reads(node: Sample, needed: Set[str]) -> Set[str]:
    return references(node.key)


@_Ordering.order.register(Sample)
def _order(ordering: _Ordering, node: Sample) -> Node:
    return node


@normal_form.register
def _normal_form(node: Sample, names: Names, present: Present) -> Node:
    return node


def _delta(node: Sample, context: Context) -> Node:
    return replace(node, input=delta(node.input, context))


def _history(node: Sample, context: Context) -> Node:
    return replace(node, input=history(node.input, context))


RULE = Rule(Sample, _delta, _history)
ORDERS = Scan("orders", (("o_1", "o"), ("cust_2", "cust"), ("note_3", "note")))
SOME = Sample(ORDERS, parse_one("cust_2"), 10)


def test_its_inputs_follow_from_its_fields() -> None:
    assert children(SOME) == (ORDERS,)
    other = replace(ORDERS)
    assert children(with_children(SOME, [other])) == (other,)


def test_the_passes_go_through_it() -> None:
    node = normal(SOME, Names(), lambda _: frozenset())
    assert explain(prune(node, ["o_1"], lambda table: ["o"])) == (
        "Sample 10 BY cust_2\n  Scan orders (o AS o_1, cust AS cust_2)"
    )
    assert facts(node, lambda table: ("o",)).keys == frozenset({frozenset({"o_1"})})
    assert column_types(node, lambda table, name: "int")["cust_2"] == "int"
    text = Emitter(lambda leaf: "orders").statement("{0}", node)
    assert text == ("(SELECT `o_1`, `cust_2`, `note_3` FROM orders WHERE pmod(hash(cust_2), 100) < 10)")


def test_its_delta_is_planned() -> None:
    context = Context({**RULES, RULE.kind: RULE}, Names(), frozenset({"orders"}))
    assert explain(delta(SOME, context)) == (
        "Sample 10 BY cust_2\n  Changes orders (o_1, cust_2, note_3, _v, _w)"
    )
