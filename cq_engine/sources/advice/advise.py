"""ADVISE CAPTURE as rows: one for each method, always in the same order."""

from __future__ import annotations

import pyarrow as pa

from cq_engine.catalog.model import DeclaredSource
from cq_engine.sources.advice import logs
from cq_engine.sources.advice.criteria import CRITERIA, marks
from cq_engine.sources.advice.facts import Facts, look
from cq_engine.sources.advice.verdicts import Verdict, verdicts

__all__ = ["advise"]


def advise(
    declared: DeclaredSource, relation: str, seconds: float, *, verbose: bool = False
) -> tuple[pa.Table, str]:
    """The rows, and in a line what the estimates rest on. The source is only read, and counters are read twice, so many
    seconds apart.

    Columns are `method`, `possible`, `why_not` (NULL where it is possible), `needs`, `misses`, `rows_read` and `rows_shipped`
    per tick (NULL where nothing is known), `recommended`, and with `verbose` the marks of the criteria. Raises AnalysisError
    and SourceError.
    """
    kept = declared.type in logs.BY_TYPE
    if kept:
        found, said = logs.BY_TYPE[declared.type](declared, relation)
    else:
        facts = look(declared, relation, seconds)
        found, said = verdicts(facts), _said(facts)
    return _table(found, verbose=verbose, kept=kept), said


def _said(facts: Facts) -> str:
    if not facts.known_by:
        return f"{facts.relation.shown}: nothing more is known of it"
    shown = f"{facts.relation.shown}: about {facts.rows} rows of {facts.row_bytes:.0f} bytes"
    return f"{shown}; {facts.known_by}"


def _table(found: list[Verdict], *, verbose: bool, kept: bool) -> pa.Table:
    columns = {
        "method": pa.array([each.method for each in found]),
        "possible": pa.array([each.possible for each in found]),
        "why_not": pa.array([each.why_not for each in found], pa.string()),
        "needs": pa.array([each.needs for each in found]),
        "misses": pa.array([each.misses for each in found]),
        "rows_read": pa.array([each.cost.read if each.cost else None for each in found], pa.int64()),
        "rows_shipped": pa.array([each.cost.shipped if each.cost else None for each in found], pa.int64()),
        "recommended": pa.array([each.recommended for each in found]),
    }
    if verbose:
        marked = [marks(each.family, is_kept=kept and each.possible) for each in found]
        columns |= {
            name: pa.array(values, pa.int64()) for name, values in zip(CRITERIA, map(list, zip(*marked)))
        }
    return pa.table(columns)
