"""Questions about the tree of a defining query, and small changes of it."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from cq_engine.planner.select_list import DELTA_FUNCTIONS

__all__ = ["alone", "from_of", "in_delta_function", "is_delta_function", "set_name", "shadowed"]


def from_of(select: exp.Select) -> exp.From:
    """The FROM of a SELECT that has one."""
    found = select.args.get("from_") or select.args.get("from")
    assert isinstance(found, exp.From)
    return found


def set_name(column: exp.Column, table: str, name: str) -> None:
    """Makes a reference one to a column of another table."""
    column.set("this", exp.to_identifier(name, quoted=True))
    column.set("table", exp.to_identifier(table, quoted=True))


def alone(select: exp.Select, item: exp.Expr) -> exp.Select:
    """SELECT the item FROM the same relations."""
    made = select.copy()
    for part in (
        "where",
        "group",
        "having",
        "order",
        "limit",
        "offset",
        "distinct",
        "qualify",
        "sort",
        "cluster",
        "distribute",
    ):
        made.set(part, None)
    made.set("expressions", [item.copy()])
    return made


def is_delta_function(item: exp.Expr) -> bool:
    """Whether it says something of a delta, and not of a row."""
    return isinstance(item, exp.Anonymous) and item.name.lower() in DELTA_FUNCTIONS


def in_delta_function(column: exp.Expr) -> bool:
    """Whether it stands in one of them, where it names a column of the result."""
    return any(is_delta_function(each) for each in _ancestors(column))


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def shadowed(column: exp.Column, select: exp.Select, alias: str) -> bool:
    """Whether a SELECT between the column and `select` has something of this alias itself."""
    for above in _ancestors(column):
        if above is select:
            return False
        if isinstance(above, exp.Select):
            first = above.args.get("from_") or above.args.get("from")
            items = (
                [] if first is None else [first.this, *(join.this for join in above.args.get("joins") or [])]
            )
            if any(item.alias_or_name.lower() == alias.lower() for item in items):
                return True
    return True
