"""Generator functions: LATERAL VIEW, LATERAL explode(...), table functions in FROM, generators in the SELECT list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from cq_engine.algebra.coercion import Types
from cq_engine.algebra.functions import call_name, conjuncts
from cq_engine.algebra.lowering.lowered import Environment, From
from cq_engine.algebra.lowering.scope import Fields, Scope
from cq_engine.algebra.lowering.subqueries import Pending
from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import (
    Distinct,
    Filter,
    Generate,
    Node,
    OuterJoin,
    Project,
    Values,
    column,
    references,
)

__all__ = ["Generators", "is_generator"]

_GENERATORS = frozenset(
    f"{name}{end}"
    for name in ("explode", "posexplode", "inline", "stack", "json_tuple", "variant_explode", "sql_keywords")
    for end in ("", "_outer")
)
_MOST_VALUES = 200
"""A range() of at most so many values is written out as rows; a longer one is a sequence() that Spark makes."""


def is_generator(node: exp.Expr) -> bool:
    """Is it a call of a function that makes rows?"""
    return generator_name(node) in _GENERATORS


def generator_name(node: exp.Expr) -> str:
    """The Spark name of a generator; sqlglot has classes for some."""
    if isinstance(node, exp.Unnest):
        return ""
    return call_name(node)


class Generators:
    """Mixed into the lowering."""

    names: Names
    pending: dict[str, Pending]
    types: Types | None

    if TYPE_CHECKING:

        def expression(self, expression: exp.Expr, scope: Scope, environment: Environment) -> exp.Expr: ...

        def join_node(self, part: From) -> Node: ...

        def add_domain(self, part: From, environment: Environment) -> None: ...

        def attach(
            self, node: Node, expressions: Sequence[exp.Expr], only: str | None = None
        ) -> tuple[Node, list[exp.Expr]]: ...

    # ---------------------------------------------------------------- FROM

    def generate(
        self,
        left: From,
        lateral: exp.Lateral,
        side: str,
        environment: Environment,
        on: exp.Expr | None = None,
    ) -> From:
        """LATERAL VIEW explode(...) and its kin: rows made from each row."""
        if side == "LEFT" and on is None:  # Spark joins it as if LEFT were not there
            raise NotLowered("LEFT JOIN LATERAL of a generator without ON: write ON true")
        alias = lateral.args.get("alias")
        given = [c.name for c in alias.columns] if alias is not None else []
        label = (alias.name.lower() if alias is not None else "") or "\0" + self.names.fresh("source")
        call = self.expression(lateral.this, left.scope(environment.outer), environment)
        if environment.domain is not None and references(call) & set(environment.domain.columns):
            self.add_domain(left, environment)
        node = self.join_node(left)
        node, (call,) = self.attach(node, [call])
        names = self.generator_names(node, call, given)
        outputs = tuple(self.names.fresh(n) for n in names)
        right: Fields = {n.lower(): column(o) for n, o in zip(names, outputs)}
        made = From.of(Values(("_",), ((exp.Literal.number(1),),)), label, right)
        outer = bool(lateral.args.get("outer")) or side == "LEFT"
        both = left.beside(made)
        if on is None or (isinstance(on, exp.Boolean) and on.this):
            return both.over(Generate(node, call, outputs, outer))
        condition = self.expression(on, both.scope(environment.outer), environment)
        if side != "LEFT":
            result = both.over(Generate(node, call, outputs, outer))
            result.conditions += conjuncts(condition)
            return result
        return both.over(self._pad(node, call, outputs, condition))

    def _pad(self, node: Node, call: exp.Expr, outputs: tuple[str, ...], condition: exp.Expr) -> Node:
        """LEFT JOIN LATERAL explode(...) ON condition: the elements that pass, or one row of NULLs.

        The elements that pass are found per value of what the generator and the condition read, each value once.
        """
        if references(condition) & set(self.pending):
            raise NotLowered("a subquery in ON of a LEFT JOIN with a generator")
        used = sorted((references(call) | references(condition)) & set(node.columns))
        own = {name: self.names.fresh(name.rsplit("_", 1)[0]) for name in used}

        def renamed(part: exp.Expr) -> exp.Expr:
            return column(own[part.name]) if isinstance(part, exp.Column) and part.name in own else part

        values = Distinct(Project(node, tuple((own[name], column(name)) for name in used)), internal=True)
        made = Generate(values, call.copy().transform(renamed), outputs, False)
        passing = Filter(made, condition.copy().transform(renamed))
        on = tuple(exp.NullSafeEQ(this=column(n), expression=column(o)) for n, o in own.items())
        return OuterJoin(node, passing, "LEFT", on)

    def table_function(
        self, table: exp.Table, alias: str, renamed: Sequence[str], environment: Environment
    ) -> From:
        """`FROM explode(array(1, 2))`, `FROM range(5)`: a relation that depends on no table."""
        call = table.this
        if call_name(call) == "range" or (isinstance(call, exp.Anonymous) and call.name.lower() == "range"):
            return self._range(call, alias, renamed)
        if not is_generator(call):
            raise NotLowered(
                f"the table function {call_name(call) or call.sql(dialect='spark')} has no algebra"
            )
        one = self.names.fresh("one")
        start = Values((one,), ((exp.Literal.number(1),),))
        resolved = self.expression(call, Scope({}, {}, environment.outer), environment)
        names = self.generator_names(start, resolved, renamed)
        outputs = tuple(self.names.fresh(n) for n in names)
        first = From([start], [], {}, [])
        if environment.domain is not None and references(resolved) & set(environment.domain.columns):
            self.add_domain(first, environment)
        fields: Fields = {n.lower(): column(o) for n, o in zip(names, outputs)}
        made = From.of(Generate(first.node(), resolved, outputs, False), alias, fields)
        made.has_domain = first.has_domain
        return made

    def _range(self, call: exp.Expr, alias: str, renamed: Sequence[str]) -> From:
        arguments = [_integer(each) for each in call.expressions]
        if not 1 <= len(arguments) <= 4 or any(each is None for each in arguments):
            raise NotLowered("range() of other things than whole numbers")
        numbers = [each for each in arguments if each is not None]
        made = range(numbers[0]) if len(numbers) == 1 else range(*numbers[:3])
        name = self.names.fresh("id")
        fields: Fields = {(renamed[0].lower() if renamed else "id"): column(name)}
        bigint = exp.DataType.build("bigint", dialect="spark")

        def number(value: int) -> exp.Expr:
            return exp.Cast(this=exp.Literal.number(value), to=bigint.copy())

        if len(made) <= _MOST_VALUES:
            rows = tuple((number(each),) for each in made) or ((number(0),),)
            node: Node = Values((name,), rows)
            return From.of(node if made else Filter(node, exp.false()), alias, fields)
        start = Values((self.names.fresh("one"),), ((exp.Literal.number(1),),))
        ends = [number(made[0]), number(made[-1]), number(made.step)]
        series = exp.Explode(this=exp.Anonymous(this="sequence", expressions=ends))
        return From.of(Generate(start, series, (name,), False), alias, fields)

    # ---------------------------------------------------------------- names

    def generator_names(self, node: Node, call: exp.Expr, given: Sequence[str]) -> list[str]:
        """The names of a generator's columns: those given, else Spark's."""
        if given:
            return list(given)
        name = generator_name(call).removesuffix("_outer")
        arguments = _arguments(call)
        if name == "json_tuple":
            return [f"c{i}" for i in range(len(arguments) - 1)]
        if name == "stack":
            rows = _integer(arguments[0])
            if rows is None:
                raise NotLowered("stack() with a number of rows that is not a literal")
            return [f"col{i}" for i in range(-(-(len(arguments) - 1) // rows))]
        if name == "variant_explode":
            return ["pos", "key", "value"]
        kind = self.type_of(node, arguments[0])
        if name == "inline":
            return field_names(kind.expressions[0] if kind.expressions else kind)
        columns = ["key", "value"] if kind.is_type(exp.DataType.Type.MAP) else ["col"]
        return ["pos", *columns] if name == "posexplode" else columns

    def type_of(self, node: Node, expression: exp.Expr) -> exp.DataType:
        """The type of an expression over `node`. Raises NotLowered where types are not known."""
        if self.types is None or references(expression) & set(self.pending):
            raise NotLowered(f"the type of {expression.sql(dialect='spark')} is not known")
        return exp.DataType.build(self.types(node, [expression])[0], dialect="spark")

    def struct_fields(self, node: Node, expression: exp.Expr) -> list[str]:
        """The fields of a struct, for `s.*`."""
        return field_names(self.type_of(node, expression))


def field_names(kind: exp.Expr) -> list[str]:
    """The names of a struct type's fields."""
    if not (isinstance(kind, exp.DataType) and kind.is_type(exp.DataType.Type.STRUCT)):
        raise NotLowered(f"{kind.sql(dialect='spark')} is not a struct")
    return [each.name for each in kind.expressions]


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    first = [call.this] if isinstance(call.this, exp.Expr) else []
    return [*first, *call.expressions]


def _integer(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Neg):
        inner = _integer(node.this)
        return None if inner is None else -inner
    return int(node.name) if isinstance(node, exp.Literal) and node.is_int else None
