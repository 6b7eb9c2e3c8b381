"""What names mean inside one SELECT: columns of its FROM clause, aliases of its items, columns of the query around it.

Spark's order: a column of FROM, else the alias of an item before it, else a column of the query around. A name that is
no column of its own may be a field of a struct (`s.x`, `t.s.x`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from cq_engine.algebra.names import NotLowered
from cq_engine.algebra.nodes import column, references

__all__ = ["Fields", "Outer", "Scope", "names_in", "parts_of", "place_column"]

Fields = dict[str, exp.Expr]
"""Column name (lower case) → expression over the plan's columns."""


@dataclass
class Scope:
    """`sources` are the columns of each alias; `merged` those of USING, which have one value under their bare name.

    `aliases` are the items of the SELECT list so far. An alias of FROM that has no name is "\\0" and a number.
    """

    sources: Mapping[str, Fields]
    merged: Mapping[str, exp.Expr] = field(default_factory=dict)
    outer: Outer | None = None
    aliases: Fields = field(default_factory=dict)

    def find(self, parts: Sequence[str], aliases_first: bool = False) -> exp.Expr | None:
        """The expression that a name of one or more `parts` (in lower case) stands for, or None."""
        orders = (self.with_alias, self.own) if aliases_first else (self.own, self.with_alias)
        for place in orders:
            found = place(parts)
            if found is not None:
                return found
        return self.outer.find(parts) if self.outer is not None else None

    def own(self, parts: Sequence[str]) -> exp.Expr | None:
        """The column of this SELECT's FROM clause that the name is, or None."""
        if len(parts) > 1 and parts[1] in self.sources.get(parts[0], {}):
            return _fields_of(self.sources[parts[0]][parts[1]], parts[2:])
        if parts[0] in self.merged:
            return _fields_of(self.merged[parts[0]], parts[1:])
        for fields in self.sources.values():
            if parts[0] in fields:
                return _fields_of(fields[parts[0]], parts[1:])
        return None

    def with_alias(self, parts: Sequence[str]) -> exp.Expr | None:
        found = self.aliases.get(parts[0])
        return None if found is None else _fields_of(found, parts[1:])


@dataclass
class Outer:
    """The query around a subquery. `columns` maps an outer expression (as SQL) to the domain's column for it.

    With `direct` an outer expression stands for itself. `used` collects what was asked for.
    """

    scope: Scope
    columns: Mapping[str, str] = field(default_factory=dict)
    direct: bool = False
    used: dict[str, exp.Expr] = field(default_factory=dict)

    def find(self, parts: Sequence[str]) -> exp.Expr | None:
        found = self.scope.find(parts)
        return None if found is None else self.column(found)

    def column(self, expression: exp.Expr) -> exp.Expr:
        """What `expression`, which is over the outer query, is in the subquery."""
        text = expression.sql(dialect="spark")
        if not references(expression):
            return expression.copy()
        self.used.setdefault(text, expression)
        if self.direct:
            return expression.copy()
        if text not in self.columns:
            raise NotLowered(f"the outer column {text.rsplit('_', 1)[0]} cannot be read here")
        return column(self.columns[text])


def _fields_of(expression: exp.Expr, names: Sequence[str]) -> exp.Expr:
    """A field of a struct, as deep as `names` go."""
    result = expression.copy()
    for name in names:
        whole = result if isinstance(result, (exp.Column, exp.Dot, exp.Paren)) else exp.Paren(this=result)
        result = exp.Dot(this=whole, expression=exp.Identifier(this=name, quoted=True))
    return result


def parts_of(node: exp.Column) -> list[str]:
    """The parts of a name, in lower case."""
    return [part.name.lower() for part in node.parts]


def names_in(root: exp.Expr) -> Iterator[list[str]]:
    """The names of columns anywhere in `root`, subqueries included; more parts than a column may have are cut off."""
    for node in root.find_all(exp.Column):
        if not isinstance(node.this, exp.Star):
            yield parts_of(node)


def place_column(expression: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """`expression` with the values of subqueries in the place of the columns that stood for them."""

    def substitute(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.name in values:
            return exp.Paren(this=values[part.name].copy())
        return part

    return expression.copy().transform(substitute)
