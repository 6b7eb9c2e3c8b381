"""MERGE INTO as one Spark query.

The target and the source are joined; for every joined row the first clause whose condition holds decides. A target
row that more than one source row would change is an error, unless all that MERGE does with matches is an
unconditional DELETE (as Delta Lake defines).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.model import Table
from cq_engine.core.errors import AnalysisError
from cq_engine.query.query import Resolver
from cq_engine.spark.sql import Composed, fresh_name, quote
from cq_engine.spark.store_assignment import assign
from cq_engine.transactions.clauses import Clauses, Span
from cq_engine.transactions.dml import Effect, expression, find_column, pairs, target, target_columns

__all__ = ["CLAUSE", "MergeEffect", "merge"]

CLAUSE = "_cq_clause"
_MATCHED, _NOT_MATCHED, _BY_SOURCE = "matched", "not matched", "not matched by source"


@dataclass(frozen=True)
class _Clause:
    """WHEN side [AND condition] THEN action; `values` None: SET * or INSERT *."""

    side: str
    condition: Span | None
    action: str
    values: tuple[tuple[str, Span], ...] | None = ()


@dataclass(frozen=True)
class MergeEffect(Effect):
    """Pairs, and whether a target row may stand in several of them: then only because it is deleted."""

    check_cardinality: bool = True


def merge(clauses: Clauses, resolver: Resolver) -> MergeEffect:
    """MERGE INTO t [alias] USING source [alias] ON condition WHEN ... THEN ... [...]."""
    start = clauses.find(0, "MERGE")
    using = clauses.find(start, "USING")
    on = clauses.find(using, "ON")
    whens = clauses.find(on, "WHEN")
    if not start < using < on < whens < len(clauses):
        raise clauses.error("MERGE is MERGE INTO t USING s ON condition WHEN ...", start)
    at = start + (2 if clauses.word(start + 1) == "INTO" else 1)
    table, name, alias = target(clauses, resolver, at, using)
    source, source_alias = _source(clauses, resolver, start, (using + 1, on))
    parts = [_clause(clauses, span) for span in _whens(clauses, whens)]
    composed = Composed(clauses.text).add("SELECT " + target_columns(table, alias))
    _guards(composed, clauses, parts)
    for n, clause in enumerate(parts):
        _values(composed, clauses, table, (n, clause), alias=source_alias, columns=source.columns)
    source_name = fresh_name("source")
    resolver.extra[source_name] = source
    composed.add(
        f" FROM (SELECT *, true AS _cq_in_target FROM {name}) AS {quote(alias)} {_join(parts)} JOIN "
        f"(SELECT *, true AS _cq_in_source FROM {source_name}) AS {quote(source_alias)} "
    ).take(*clauses.offsets((on, whens)))
    frame = resolver.frame(composed).where(f.col(CLAUSE).isNotNull())
    matched = [c for c in parts if c.side == _MATCHED]
    lax = len(matched) == 1 and matched[0].action == "DELETE" and matched[0].condition is None
    return MergeEffect(table, pairs=_pairs(table, frame, parts), reads=True, check_cardinality=not lax)


def _source(clauses: Clauses, resolver: Resolver, start: int, span: Span) -> tuple[DataFrame, str]:
    """The source as a frame, and its alias."""
    composed = Composed(clauses.text)
    if start:
        composed.take(*clauses.offsets((0, start))).add(" ")
    if clauses.word(span[0]) == "(":
        closing = clauses.closing(span[0])
        at = closing + (2 if clauses.word(closing + 1) == "AS" else 1)
        alias = clauses.name(at) if at < span[1] else fresh_name("source")
        return resolver.frame(composed.take(*clauses.offsets((span[0] + 1, closing)))), alias
    if clauses.is_at(span[1] - 2, "AS"):
        alias = clauses.name(span[1] - 1)
    else:
        alias = clauses.name(span[1] - 1) if clauses.word(span[1] - 1) != ")" else fresh_name("source")
    return resolver.frame(composed.add("SELECT * FROM ").take(*clauses.offsets(span))), alias


def _whens(clauses: Clauses, start: int) -> list[Span]:
    spans, at = [], start
    while at < len(clauses):
        after = clauses.find(at + 1, "WHEN")
        spans.append((at, after))
        at = after
    return spans


def _clause(clauses: Clauses, span: Span) -> _Clause:
    at = span[0] + 1
    side, at = _side(clauses, at)
    then = clauses.find(at, "THEN", end=span[1])
    condition = (at + 1, then) if clauses.word(at) == "AND" else None
    if then >= span[1] or (condition is None and then != at):
        raise clauses.error(
            "MERGE clauses are WHEN [NOT] MATCHED [BY SOURCE] [AND condition] THEN ...", span[0]
        )
    action = clauses.word(then + 1)
    allowed = ("INSERT",) if side == _NOT_MATCHED else ("UPDATE", "DELETE")
    if action not in allowed:
        raise clauses.error(f"WHEN {side.upper()} takes {' or '.join(allowed)}", then + 1)
    return _Clause(side, condition, action, _action(clauses, side, action, (then + 2, span[1])))


def _side(clauses: Clauses, at: int) -> tuple[str, int]:
    if clauses.word(at) == "MATCHED":
        return _MATCHED, at + 1
    if not clauses.is_at(at, "NOT", "MATCHED"):
        raise clauses.error("WHEN MATCHED or WHEN NOT MATCHED must stand here", at)
    if clauses.is_at(at + 2, "BY", "SOURCE"):
        return _BY_SOURCE, at + 4
    return _NOT_MATCHED, at + (4 if clauses.is_at(at + 2, "BY", "TARGET") else 2)


def _action(clauses: Clauses, side: str, action: str, span: Span) -> tuple[tuple[str, Span], ...] | None:
    if action == "DELETE":
        return ()
    if action == "UPDATE":
        if clauses.word(span[0]) != "SET":
            raise clauses.error("SET must stand here", span[0])
        if clauses.word(span[0] + 1) == "*" and span[1] - span[0] == 2 and side == _MATCHED:
            return None
        return tuple(clauses.assignments((span[0] + 1, span[1])))
    if clauses.word(span[0]) == "*":
        return None
    values = clauses.find(span[0], "VALUES", end=span[1])
    if clauses.word(span[0]) != "(" or clauses.word(values + 1) != "(":
        raise clauses.error("INSERT is INSERT * or INSERT (columns) VALUES (expressions)", span[0])
    names = clauses.names((span[0] + 1, clauses.closing(span[0])))
    given = clauses.split((values + 2, clauses.closing(values + 1)))
    if len(names) != len(given):
        raise clauses.error(f"INSERT names {len(names)} columns and gives {len(given)} values", span[0])
    return tuple(zip(names, given))


_PRESENT = {
    _MATCHED: "_cq_in_target AND _cq_in_source",
    _NOT_MATCHED: "_cq_in_target IS NULL",
    _BY_SOURCE: "_cq_in_source IS NULL",
}


def _condition(composed: Composed, clauses: Clauses, clause: _Clause) -> Composed:
    composed.add(f"({_PRESENT[clause.side]})")
    if clause.condition is not None:
        composed.add(" AND (").take(*clauses.offsets(clause.condition)).add(")")
    return composed


def _guards(composed: Composed, clauses: Clauses, parts: Sequence[_Clause]) -> None:
    """The number of the clause that decides, NULL where none does."""
    composed.add(", CASE")
    for n, clause in enumerate(parts):
        _condition(composed.add(" WHEN "), clauses, clause).add(f" THEN {n}")
    composed.add(f" END AS {CLAUSE}")


def _values(
    composed: Composed,
    clauses: Clauses,
    table: Table,
    numbered: tuple[int, _Clause],
    *,
    alias: str,
    columns: Sequence[str],
) -> None:
    """The clause's new values as `_x<clause>_<column>`, evaluated only where the clause's own condition holds."""
    number, clause = numbered
    if clause.values is None:
        known = {c.lower(): c for c in columns}
        for n, column in enumerate(table.columns):
            if column.name.lower() not in known:
                raise AnalysisError(
                    f"the source of MERGE has no column {column.name}",
                    detail=f"{clause.action} * takes every column of {table.name} from the source by name",
                )
            text = f"{quote(alias)}.{quote(known[column.name.lower()])}"
            composed.add(f", {text} AS _x{number}_{n}")
        return
    for name, span in clause.values:
        _condition(composed.add(", CASE WHEN "), clauses, clause).add(" THEN ")
        expression(composed, clauses, span).add(f" END AS _x{number}_{find_column(table, name)}")


def _join(parts: Sequence[_Clause]) -> str:
    sides = {clause.side for clause in parts}
    left, right = _BY_SOURCE in sides, _NOT_MATCHED in sides
    return {(True, True): "FULL OUTER", (True, False): "LEFT OUTER", (False, True): "RIGHT OUTER"}.get(
        (left, right), "INNER"
    )


def _pairs(table: Table, frame: DataFrame, parts: Sequence[_Clause]) -> DataFrame:
    kinds = {"UPDATE": "U", "DELETE": "D", "INSERT": "I"}
    kind: SparkColumn = f.lit(None).cast("string")
    for n, clause in enumerate(parts):
        kind = f.when(f.col(CLAUSE) == n, f.lit(kinds[clause.action])).otherwise(kind)
    values = {}
    for c, column in enumerate(table.columns):
        value = f.when(f.col(CLAUSE).isin(_inserting(parts)), f.lit(None)).otherwise(f.col(f"_o{c}"))
        for n, _ in enumerate(parts):
            if f"_x{n}_{c}" in frame.columns:
                value = f.when(
                    f.col(CLAUSE) == n, assign(table, column, f"_x{n}_{c}", frame.schema)
                ).otherwise(value)
        values[c] = value
    return pairs(table, frame, kind, values)


def _inserting(parts: Sequence[_Clause]) -> list[int]:
    return [n for n, clause in enumerate(parts) if clause.action == "INSERT"] or [-1]
