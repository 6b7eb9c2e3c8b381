"""What a query needs of one of the tables that it names: which columns, and for which rows a condition of its WHERE holds.

Both are more than is needed rather than less: a column that is named anywhere counts, and a condition only where it stands in
the WHERE of the SELECT that names the table, as `column operator literal`. The query itself evaluates everything again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import date
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
from sqlglot import exp, tokenize

from cq_engine.catalog.model import Table
from cq_engine.context.services import Condition, Wanted
from cq_engine.core.types import arrow_type
from cq_engine.query.references import Reference, query_tree
from cq_engine.storage.file_look_ups import Restrict

__all__ = ["Needed", "needed_of", "wanted_of"]

_OPERATORS: dict[type[exp.Expr], str] = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARED_AS_THEY_ARE: dict[str, type] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    "string": str,
    "date": date,
}
"""Types whose values Spark compares with such a literal without a cast."""


class Needed(NamedTuple):
    """What has to be read of a table: these columns (None: all), and the rows that have one of the values in each of the columns."""

    columns: Collection[str] | None
    sought: Restrict


def needed_of(wanted: Wanted, table: Table) -> Needed:
    """What files of the table have to be read for a query that wants so much of it."""
    types = {column.name: column.type for column in table.columns}
    sought: dict[str, pa.Array] = {}
    for condition in wanted.conditions:
        name, values = condition.column, condition.values
        literal = _COMPARED_AS_THEY_ARE.get(types[name])
        if condition.operator not in ("=", "IN") or any(type(value) is not literal for value in values):
            continue
        try:
            sought.setdefault(name, pa.array(values, arrow_type(types[name])))
        except (pa.ArrowInvalid, OverflowError):  # no such value fits into the column
            continue
    named = wanted.columns
    return Needed(None if named is None else {n for n in types if n.lower() in named}, sought)


def wanted_of(text: str, reference: Reference, table: Table) -> Wanted:
    """What the query `text` needs of `table`, which `reference` names. Raises CQSyntaxError."""
    tree = query_tree(text)
    for each in tree.find_all(exp.Table):
        if isinstance(each.this, exp.Identifier) and each.this.meta.get("start") == reference.start:
            return Wanted(_columns(tree, text, table), tuple(_conditions(each, table)))
    return Wanted()


def _columns(tree: exp.Expr, text: str, table: Table) -> frozenset[str] | None:
    """The columns whose names stand anywhere in the query, if only in a literal; None where it may mean all of them, or names them
    otherwise."""
    if any(not _is_plain_count(star) for star in tree.find_all(exp.Star)):
        return None
    if any(join.args.get("method") == "NATURAL" for join in tree.find_all(exp.Join)):
        return None
    if any(not pivot.args.get("unpivot") for pivot in tree.find_all(exp.Pivot)):
        return None  # it groups by all columns that it does not name
    if any(_renames(alias) for alias in tree.find_all(exp.TableAlias)):
        return None
    if any(not select.expressions for select in tree.find_all(exp.Select)):
        return None
    if not isinstance(tree, exp.Select) and not any(True for _ in tree.find_all(exp.Select)):
        return None
    words = {
        token.text.lower() for token in tokenize(text, read="spark")
    }  # `current_user` is also a function
    if "identifier" in words:
        return None  # IDENTIFIER('a' || 'b')
    named = words | {identifier.name.lower() for identifier in tree.find_all(exp.Identifier)}
    return frozenset(column.name.lower() for column in table.columns if column.name.lower() in named)


def _is_plain_count(star: exp.Star) -> bool:
    """Whether it is the one of `count(*)`, which counts rows; in `count(* EXCEPT (a))` and `count(a, *)` it is all columns."""
    count = star.parent
    return isinstance(count, exp.Count) and not count.expressions and not any(star.args.values())


def _renames(alias: exp.TableAlias) -> bool:
    """Whether it gives other names to the columns of a table, in their order: `t AS a (x, y)`."""
    of = alias.parent
    if not alias.args.get("columns") or isinstance(of, exp.CTE | exp.Lateral):
        return False
    return not (isinstance(of, exp.Subquery) and isinstance(of.this, exp.Select | exp.SetOperation))


def _conditions(named: exp.Table, table: Table) -> Iterator[Condition]:
    """The conditions that the WHERE beside a table's name puts on its columns."""
    if named.args.get("sample") is not None or named.args.get("pivots"):
        return
    renamed = named.args.get("alias")
    if renamed is not None and renamed.args.get("columns"):
        return
    place = named.parent
    if isinstance(place, exp.Join) and place.kind in ("SEMI", "ANTI"):
        return  # the WHERE does not see it, and the name may be that of another one
    select = place.parent if isinstance(place, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select) or select.args.get("where") is None:
        return
    joins = select.args.get("joins") or []
    is_alone = not joins and not select.args.get("laterals")
    if any(join.args.get("sample") is not None for join in joins):
        return
    plain = all(not join.side and join.kind in ("", "INNER", "CROSS") for join in joins)
    alias = (named.alias or named.name).lower()
    names = {column.name.lower(): column.name for column in table.columns}
    for part in _conjuncts(select.args["where"].this):
        found = _condition(part)
        if found is None:
            continue
        column, condition = found
        of = column.table.lower()
        mine = of == alias or (not of and is_alone)
        if not mine or column.name.lower() not in names or column.args.get("db") is not None:
            continue
        if condition.operator == "IS NULL" and not plain:
            continue  # it holds for rows that an outer join makes up
        yield condition._replace(column=names[column.name.lower()])


def _conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    elif isinstance(condition, exp.Between) and not condition.args.get("symmetric"):
        yield exp.GTE(this=condition.this, expression=condition.args["low"])
        yield exp.LTE(this=condition.this, expression=condition.args["high"])
    else:
        yield condition


def _condition(part: exp.Expr) -> tuple[exp.Column, Condition] | None:
    """A condition of one column and literals; its name is still to be looked up."""
    operator = _OPERATORS.get(type(part))
    if operator is not None:
        left, right = part.this, part.expression
        if isinstance(right, exp.Column):
            left, right, operator = right, left, _TURNED[operator]
        value = _literal(right)
        if isinstance(left, exp.Column) and value is not None:
            return left, Condition(left.name, operator, (value,))
    if isinstance(part, exp.In) and isinstance(part.this, exp.Column) and part.expressions:
        if part.args.get("query") is not None or part.args.get("unnest") is not None:
            return None
        values = [_literal(each) for each in part.expressions]
        if all(value is not None for value in values):
            return part.this, Condition(part.this.name, "IN", tuple(values))
    negated = isinstance(part, exp.Not)
    inner = part.this if negated else part
    if (
        isinstance(inner, exp.Is)
        and isinstance(inner.this, exp.Column)
        and isinstance(inner.expression, exp.Null)
    ):
        return inner.this, Condition(inner.this.name, "IS NOT NULL" if negated else "IS NULL")
    return None


def _literal(each: exp.Expr) -> object | None:
    """The value of a literal; None for NULL and for everything else."""
    while isinstance(each, exp.Paren):
        each = each.this
    if isinstance(each, exp.Neg):
        found = _literal(each.this)
        return -found if isinstance(found, int | Decimal) and not isinstance(found, bool) else None
    if isinstance(each, exp.Literal):
        if each.is_string:
            return str(each.this)
        text = str(each.this)
        if text.isdigit():
            return int(text)
        return Decimal(text) if text.replace(".", "", 1).isdigit() else None
    if isinstance(each, exp.Cast) and each.to.sql(dialect="spark").upper() == "DATE":
        inner = each.this
        if isinstance(inner, exp.Literal) and inner.is_string:
            try:
                return date.fromisoformat(str(inner.this))
            except ValueError:
                return None
    return None
