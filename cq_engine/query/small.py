"""SELECTs of columns of one small relation, in an order: answered from memory, without Spark.

    SELECT * | column [AS name], … | count(*) [AS name] FROM relation [ORDER BY column [ASC | DESC], …] [LIMIT n]

They are what is asked most at a prompt and in a program: what a table or a result has in it now. Everything else, and whatever could
mean something else to Spark (a column in other case, a float in ORDER BY), is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from sqlglot import exp

from cq_engine.context.services import SmallRows
from cq_engine.core.arrays import sort_places
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.evaluation.groups import order
from cq_engine.evaluation.vectors import TooLargeError, UnsupportedError, Vector
from cq_engine.query.references import Reference, parse_query

__all__ = ["small_select"]

_CLAUSES = frozenset({"expressions", "from", "from_", "order", "limit"})


@dataclass(frozen=True)
class _Order:
    column: Column
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class _Shape:
    """Which columns are shown under which names (None: their number), in which order, and how many rows."""

    shown: tuple[tuple[Column, str], ...] | None
    count: str
    orders: tuple[_Order, ...]
    limit: int | None


def small_select(text: str, rows_of: Callable[[Reference], SmallRows | None]) -> SmallRows | None:
    """The rows of a SELECT of this shape; None for another one, or where `rows_of` has none in memory of its relation.

    Raises CQSyntaxError for a text that does not parse, AnalysisError for a name with more than one part.
    """
    tree, references = parse_query(text)
    if not isinstance(tree, exp.Select) or {name for name, value in tree.args.items() if value} - _CLAUSES:
        return None
    table = _one_table(tree)
    if table is None or len(references) != 1:
        return None
    small = rows_of(references[0])
    if small is None:
        return None
    names = {(table.alias or references[0].name).lower()}
    shape = _shape(tree, small.columns, names)
    try:
        return None if shape is None else _rows(small.rows, shape)
    except (UnsupportedError, TooLargeError):
        return None


def _one_table(tree: exp.Select) -> exp.Table | None:
    """The relation, where there is nothing but its name and an alias."""
    source = tree.args.get("from_") or tree.args.get("from")
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table) or {n for n, v in table.args.items() if v} - {"this", "alias"}:
        return None
    alias = table.args.get("alias")
    return None if alias is not None and alias.args.get("columns") else table


# ------------------------------------------------------------------------------------------------ what is wanted


def _shape(tree: exp.Select, columns: Sequence[Column], names: set[str]) -> _Shape | None:
    limit = _limit(tree.args.get("limit"))
    if limit == -1:
        return None
    ordered = tree.args.get("order")
    count = _count(tree.expressions)
    if count:
        return None if ordered is not None else _Shape(None, count, (), limit)
    shown = _shown(tree.expressions, columns, names)
    if shown is None:
        return None
    orders = [_order(each, shown, columns, names) for each in (ordered.expressions if ordered else ())]
    known = tuple(each for each in orders if each is not None)
    return _Shape(shown, "", known, limit) if len(known) == len(orders) else None


def _count(expressions: Sequence[exp.Expr]) -> str:
    """The name of `count(*)`, where nothing else is wanted."""
    if len(expressions) != 1:
        return ""
    (one,) = expressions
    call = one.this if isinstance(one, exp.Alias) else one
    if not isinstance(call, exp.Count) or not isinstance(call.this, exp.Star) or call.expressions:
        return ""
    return one.alias if isinstance(one, exp.Alias) else "count(1)"


def _shown(
    expressions: Sequence[exp.Expr], columns: Sequence[Column], names: set[str]
) -> tuple[tuple[Column, str], ...] | None:
    """The columns that are shown, each under its name; None where there is something else, or a name stands twice."""
    found: list[tuple[Column, str]] = []
    for each in expressions:
        if isinstance(each, exp.Star):
            if any(each.args.values()):
                return None
            found += [(column, column.name) for column in columns]
            continue
        column = _column(each.this if isinstance(each, exp.Alias) else each, columns, names)
        if column is None:
            return None
        found.append((column, each.alias if isinstance(each, exp.Alias) else column.name))
    once = len({name.lower() for _, name in found}) == len(found)
    return tuple(found) if once and all(can(column.type, Use.EXCHANGED) for column, _ in found) else None


def _column(node: exp.Expr, columns: Sequence[Column], names: set[str]) -> Column | None:
    """The column that is meant, written as the relation writes it."""
    if (
        not isinstance(node, exp.Column)
        or node.args.get("db")
        or (node.table and node.table.lower() not in names)
    ):
        return None
    return next((column for column in columns if column.name == node.name), None)


def _order(
    node: exp.Expr, shown: Sequence[tuple[Column, str]], columns: Sequence[Column], names: set[str]
) -> _Order | None:
    if not isinstance(node, exp.Ordered) or node.args.get("with_fill"):
        return None
    column = _column(node.this, columns, names)
    if isinstance(node.this, exp.Column) and not node.this.table:  # what is shown goes before what is not
        aliased = [c for c, name in shown if name.lower() == node.this.name.lower()]
        column = aliased[0] if aliased else column
    if column is None:
        return None
    return _Order(column, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))


def _limit(node: exp.Expr | None) -> int | None:
    """How many rows; None for all of them, -1 where only Spark knows."""
    if node is None:
        return None
    wanted = node.expression if isinstance(node, exp.Limit) else None
    if isinstance(wanted, exp.Literal) and not wanted.is_string and wanted.this.isdigit():
        return int(wanted.this)
    return -1


# ------------------------------------------------------------------------------------------------ rows


def _rows(rows: pa.Table, shape: _Shape) -> SmallRows:
    """Raises UnsupportedError, TooLargeError."""
    if shape.shown is None:
        number = Column(shape.count, "bigint", nullable=False)
        schema = pa.schema([pa.field(number.name, pa.int64(), nullable=False)])
        return _limited(pa.table([[rows.num_rows]], schema=schema), (number,), shape)
    if shape.orders:
        keys = [_key(rows, each) for each in shape.orders]
        rows = rows.take(pa.array(sort_places(*keys)))
    columns = tuple(replace(column, name=name) for column, name in shape.shown)
    shown = rows.select([column.name for column, _ in shape.shown])
    return _limited(shown.rename_columns([name for _, name in shape.shown]), columns, shape)


def _key(rows: pa.Table, each: _Order) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    vector = Vector.of(rows.column(each.column.name), each.column.type)
    return order(vector, descending=each.descending, nulls_first=each.nulls_first)


def _limited(rows: pa.Table, columns: tuple[Column, ...], shape: _Shape) -> SmallRows:
    return SmallRows(rows if shape.limit is None else rows.slice(0, shape.limit), columns)
