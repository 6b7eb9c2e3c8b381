"""The SELECT list of a defining query as output columns: result columns, old values and delta functions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.emit import sql_of
from cq_engine.catalog.model import OutputColumn
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.planner.select_list import Item, SelectList, safe_name

__all__ = ["output_columns"]

_FUNCTION_TYPES = {
    "marker": "string",
    "time": "timestamp",
    "commit_time": "timestamp",
    "commit_version": "bigint",
}


def output_columns(listed: SelectList, columns: Sequence[Column]) -> tuple[list[OutputColumn], list[str]]:
    """The SELECT list as output columns, and the expressions that cq_old_value needs beside the result columns."""
    if not listed.items:
        return [OutputColumn(c.name, c.type, "result", i) for i, c in enumerate(columns)], []
    results = [item for item in listed.items if item.kind == "result"]
    stars = [item for item in results if item.text.rstrip().endswith("*")]
    if len(stars) > 1:
        raise AnalysisError(
            "several stars and delta functions in one SELECT list", hint="list the columns by name"
        )
    starred = len(columns) - len(results) + 1
    outputs: list[OutputColumn] = []
    hidden: list[str] = []
    position = 0
    spans: list[tuple[Item, int]] = []
    for item in results:
        spans.append((item, position))
        position += starred if item in stars else 1
    starts = {id(item): start for item, start in spans}
    for item in listed.items:
        if item.kind == "result":
            start = starts[id(item)]
            places = range(start, start + (starred if item in stars else 1))
            outputs += [OutputColumn(columns[i].name, columns[i].type, "result", i) for i in places]
        elif item.kind == "old":
            index = _old_index(item, spans, stars, columns)
            if index is None:
                index = len(columns) + len(hidden)
                hidden.append(_over_results(item, spans, stars, columns))
            outputs.append(OutputColumn(safe_name(item.name), "", "old", index))
        else:
            outputs.append(OutputColumn(safe_name(item.name), _FUNCTION_TYPES[item.kind], item.kind))
    _distinct_names(outputs)
    return outputs, hidden


def _distinct_names(outputs: Sequence[OutputColumn]) -> None:
    seen: set[str] = set()
    for output in outputs:
        if output.name.lower() in seen:
            raise AnalysisError(
                f"two columns of the SELECT list are called {output.name}",
                hint="give one of them another name with AS",
            )
        seen.add(output.name.lower())


def _tree(text: str) -> exp.Expr:
    parsed = parse_expression(f"SELECT {text}")
    assert isinstance(parsed, exp.Select)
    found: exp.Expr = parsed.selects[0].unalias()
    return found


def _old_index(
    item: Item, spans: Sequence[tuple[Item, int]], stars: Sequence[Item], columns: Sequence[Column]
) -> int | None:
    """The result column that cq_old_value names, by name or by the expression it repeats."""
    wanted = _tree(item.argument)
    for known, start in spans:
        if known not in stars and _tree(known.text) == wanted:
            return start
    if isinstance(wanted, exp.Column):
        for i, column in enumerate(columns):
            if column.name.lower() == wanted.name.lower():
                return i
    return None


def _over_results(
    item: Item, spans: Sequence[tuple[Item, int]], stars: Sequence[Item], columns: Sequence[Column]
) -> str:
    """The argument of cq_old_value as an expression over the result columns."""
    known = [(_tree(each.text), columns[start].name) for each, start in spans if each not in stars]
    names = {c.name.lower(): c.name for c in columns}

    def over_result(node: exp.Expr) -> exp.Expr:
        for expression, name in known:
            if node == expression:
                return exp.column(name, quoted=True)
        return node

    tree = _tree(item.argument).transform(over_result)
    for column in tree.find_all(exp.Column):
        if column.name.lower() not in names or column.table:
            raise AnalysisError(
                f"cq_old_value({item.argument}) is not an expression over the result's columns",
                detail=f"{column.sql(dialect='spark')} is not one of {', '.join(c.name for c in columns)}",
                hint="select the column too, or build the expression from selected ones",
            )
    return sql_of(tree)
