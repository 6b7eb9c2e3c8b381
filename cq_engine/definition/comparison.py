"""Two definitions of one query: whether their results have a difference that is a delta, and its columns."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from cq_engine.algebra.emit import quote
from cq_engine.catalog.graph import sheds
from cq_engine.catalog.model import PARTIAL, ContinuousQuery
from cq_engine.context.services import Services
from cq_engine.definition.outputs import output_columns
from cq_engine.planner.select_list import select_list
from cq_engine.spark.sql import fresh_name, run_sql

__all__ = ["not_comparable", "with_old_values"]


def not_comparable(old: ContinuousQuery, new: ContinuousQuery) -> str:
    """Why the results of two definitions of a query have no difference that is a delta; empty where they have one."""
    if PARTIAL in (old.verdict, new.verdict):
        return "it is maintained from partial changes of tables WITHOUT SNAPSHOT: there are no results to compare"
    if sheds(old) or sheds(new):
        return "rows are left out of its result (shed), and another query would not know which"
    before, after = (
        [(c.name.lower(), c.type) for c in query.result.columns[: query.width]] for query in (old, new)
    )
    if before != after:
        return f"the result's columns were {_listing(before)} and would be {_listing(after)}"
    keys = [None if q.key is None else {k.lower() for k in q.key} for q in (old, new)]
    if keys[0] != keys[1]:
        return f"the result key was {_key(old)} and would be {_key(new)}"
    if dict(old.session) != dict(new.session):
        changed = sorted({name for name, _ in {*old.session} ^ {*new.session}})
        return f"{', '.join(changed)} is not as it was when the query was created"
    hidden = [[c.type for c in q.result.columns[q.width :]] for q in (old, new)]
    if any(a != b for a, b in zip(*hidden)):
        return "the types of cq_old_value expressions differ"
    return ""


def _listing(columns: Sequence[tuple[str, str]]) -> str:
    return f"({', '.join(f'{name} {kind}' for name, kind in columns)})"


def _key(query: ContinuousQuery) -> str:
    return "none" if query.key is None else f"({', '.join(query.key)})"


def with_old_values(services: Services, query: ContinuousQuery, result: DataFrame) -> DataFrame:
    """A result with the columns of the query's delta log: the expressions over it that cq_old_value asks for."""
    columns = query.result.columns[: query.width]
    _, hidden = output_columns(select_list(query.query), columns)
    shown = result.select(*(quote(name) for name in result.columns[: query.width]))
    named = shown.toDF(*(c.name for c in columns))
    relation = fresh_name("result")
    more = "".join(f", ({e}) AS `_old_{i}`" for i, e in enumerate(hidden))
    return run_sql(services.spark(), f"SELECT r.*{more} FROM {relation} AS r", {relation: named})
