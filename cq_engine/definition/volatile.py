"""Is a query's result a function of its tables' rows? Spark's analysed plan says what names and strings became.

A bare `user` is a column or a function, `'now'` is text or the time of the day: only Spark knows. In its plan functions
have their names, and a string that is read as a date or a time stands in a cast without a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from sqlglot import exp

from cq_engine.algebra.functions import OF_CHANCE, OF_SESSION, OF_TIME
from cq_engine.core.errors import AnalysisError
from cq_engine.planner.words import SPECIAL_TIME

__all__ = ["check_constant", "is_plain", "mask_brackets"]

Texts = Callable[[list[exp.Expr]], list[str]]
"""The values of constant expressions as text."""

_TIME = "its value changes without any change of a table, so that the result would change without a delta"
_SESSION = "its value depends on who runs a refresh, where and with which Spark, not on the tables' rows"
_RANDOM = "it is not deterministic: a row that leaves could not be taken back as it came"
_WHY = {
    **dict.fromkeys(OF_TIME, _TIME),
    **dict.fromkeys(OF_SESSION, _SESSION),
    **dict.fromkeys(OF_CHANCE, _RANDOM),
}
_CALL = re.compile(rf"(?<![\w.`])({'|'.join(_WHY)})\(", re.IGNORECASE)
_READ = re.compile(
    r"(?<!\w)(?:(cast|try_cast)|(?:try_)?to_(?:date|timestamp(?:_ntz|_ltz)?)|(extract|date_?part))\(",
    re.IGNORECASE,
)
_SHOWN_BARE = re.compile(r"(?<!\w)(?:between|nullif|ifnull|nvl2?|equal_null)\(", re.IGNORECASE)
"""Calls that compare their arguments, and that Spark shows without the casts that it makes of them."""
_BRACKET = re.compile(r"[()]")
_MASK = str.maketrans("()", "[]")
_ATTRIBUTE = re.compile(r"(\w+)#\d+")
_COMMA = re.compile(r", (?![^()]*\))")
_AS_TIME = re.compile(r" as (date|timestamp(_ntz|_ltz)?)$")
_HINTS = {
    _TIME: "keep the time of a row in a column, or compare with commit times when reading the deltas",
    _SESSION: "write its value as a literal",
    _RANDOM: "keep its value in a column of the table",
}


_PLAIN = (exp.And, exp.Or, exp.Sum, exp.Count, exp.Min, exp.Max, exp.Avg)
"""Calls, as sqlglot counts them, that make a date, a time or anything else that changes out of nothing else that does."""

_OTHER_TEXTS = (
    exp.Command,
    exp.DPipe,
    exp.Placeholder,
    exp.Parameter,
    exp.RawString,
    exp.HexString,
    exp.National,
)


def is_plain(tree: exp.Expr) -> bool:
    """True where the query's words alone say that `check_constant` finds nothing, so that Spark's plan is not needed."""
    for node in tree.walk():
        if isinstance(node, exp.Func) and type(node) not in _PLAIN:
            return False
        if isinstance(node, _OTHER_TEXTS):
            return False
        if isinstance(node, exp.Identifier) and node.name.lower() in _WHY:
            return False
        if isinstance(node, exp.Literal) and node.is_string and SPECIAL_TIME.fullmatch(node.name):
            return False
    return True


def mask_brackets(tree: exp.Expr) -> exp.Expr | None:
    """The query with [ and ] for the round brackets in its strings, which Spark's plan shows without quotes; None where
    there are none. Its plan has the same calls."""
    if not any(_BRACKET.search(e.name) for e in tree.find_all(exp.Literal) if e.is_string):
        return None
    masked = tree.copy()
    for each in list(masked.find_all(exp.Literal)):
        if each.is_string:
            each.set("this", each.name.translate(_MASK))
    return masked


def check_constant(tree: exp.Expr, plan: str, columns: Mapping[str, str], texts: Texts) -> None:
    """Raises AnalysisError where the query `tree`, which Spark analysed as `plan`, is not a function of its tables.

    A string in the plan that reads like a call is taken for one: see `mask_brackets`.

    Args:
        columns: the types of the tables' columns.
        texts: evaluates constant expressions.
    """
    strings = [e for e in tree.find_all(exp.Literal) if e.is_string]
    for column in sorted(c for c in columns if "(" in c):
        plan = plan.replace(f"{column}#", "#")
    called = _CALL.search(plan)
    if called is not None:
        _refuse(called[1].lower(), _WHY[called[1].lower()])
    for each in strings:
        if SPECIAL_TIME.fullmatch(each.name) and _is_typed(each):
            _refuse(f"'{each.name}'", _TIME, " as a date or a time")
    plain = {name for name, kind in columns.items() if not kind.startswith(("date", "timestamp"))}
    for text in _compared_bare(plan, plain):
        _refuse(f"'{text}'", _TIME, " as a date or a time")
    for operand in _read_as_time(plan):
        found = [operand] if "(" not in operand else texts(list(_constants(tree)))
        special = next((text for text in found if SPECIAL_TIME.fullmatch(text)), None)
        if special is not None:
            _refuse(f"'{special.strip()}'", _TIME, " as a date or a time")


def _refuse(what: str, why: str, how: str = "") -> None:
    raise AnalysisError(f"{what} cannot stand in a continuous query{how}", detail=why, hint=_HINTS[why])


def _is_typed(literal: exp.Expr) -> bool:
    """TIMESTAMP 'now' is a literal in Spark's plan, of the time when it was parsed."""
    above = literal.parent
    return isinstance(above, exp.Cast) and above.to.this in exp.DataType.TEMPORAL_TYPES


def _read_as_time(plan: str) -> Iterator[str]:
    """What is read as a date or a time and has no column in it."""
    for start in _READ.finditer(plan):
        inside = _inside(plan, start.end())
        if start[1]:
            kind = _AS_TIME.search(inside)
            operand = inside[: kind.start()] if kind else "#"
        else:
            given = _COMMA.split(inside)
            operand = given[min(1 if start[2] else 0, len(given) - 1)]
        if "#" not in operand:
            yield operand


def _compared_bare(plan: str, plain: set[str]) -> Iterator[str]:
    """Strings that may be compared with times: not only with columns of which all are `plain`."""
    for start in _SHOWN_BARE.finditer(plan):
        inside = _inside(plan, start.end())
        names = set(_ATTRIBUTE.findall(inside))
        if not names or not names <= plain:
            yield from (each for each in _COMMA.split(inside) if SPECIAL_TIME.fullmatch(each))


def _inside(text: str, start: int) -> str:
    """The text from `start` up to the bracket that closes the one before it."""
    depth, end = 1, start
    while depth and end < len(text):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[start : end - 1]


def _constants(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The expressions without columns that compute something from strings."""
    for each in tree.find_all(exp.Func, exp.DPipe, exp.Case):
        strings = any(literal.is_string for literal in each.find_all(exp.Literal))
        if strings and not each.find(exp.Column, exp.Query):
            yield each
