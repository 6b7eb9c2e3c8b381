"""How an aggregate function is kept as running sums: its accumulators, and the expression that gives its value.

Counts and exact sums form a group under + (differential dataflow's requirement for retraction), so that rows can be
taken back. SUM and AVG of integers and decimals are exact in a widened decimal; the variance
family is, over integers, from the exact sums of x and x². FLOAT and DOUBLE sums are marked inexact: once a
row leaves, its group is read again, so that no residue is ever carried. MIN and MAX are merged with what comes, and the
group is read again where what leaves is not surely less than the extremum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.functions import call_name

__all__ = ["COUNT", "Accumulator", "Kept", "State", "kept_function"]

COUNT = "_n"
"""The column of a state with the number of a group's rows."""


@dataclass(frozen=True)
class Accumulator:
    """`term` is summed over the rows, each with its weight; NULL terms count as nothing. `type` is its Spark type.

    `kind` is "sum", or "min" or "max", which take no row back: a group that loses its extremum has to be read again.
    """

    term: exp.Expr
    type: str
    exact: bool = True
    kind: str = "sum"


@dataclass(frozen=True)
class Kept:
    """An aggregate function by accumulators: `value` builds its result from the accumulators' columns."""

    accumulators: tuple[Accumulator, ...]
    value: Callable[[tuple[str, ...]], str]

    @property
    def exact(self) -> bool:
        return all(each.exact and each.kind == "sum" for each in self.accumulators)


_SMALL = {"tinyint": 3, "smallint": 5, "int": 10}
TypeOf = Callable[[exp.Expr], str]


def kept_function(call: exp.Expr, type_of: TypeOf, result_type: str) -> Kept | None:
    """How `call` is kept, or None where it has to be recomputed.

    `type_of` gives the Spark type of an expression over the aggregate's input; `result_type` is the type of `call`.
    """
    condition = None
    if isinstance(call, exp.Filter):
        condition = call.expression.this
        call = call.this
    if call.find(exp.Distinct) or call.find(exp.Order):
        return None
    rule = _RULES.get(_kind(call))
    return rule(call, condition, type_of, result_type) if rule else None


def _kind(call: exp.Expr) -> str:
    for kind, classes in _CLASSES.items():
        if isinstance(call, classes):
            return kind
    return {"every": "bool_and", "some": "bool_or", "any": "bool_or", "std": "stddev_samp"}.get(
        call_name(call), ""
    )


_CLASSES: dict[str, tuple[type[exp.Expr], ...]] = {
    "count": (exp.Count,),
    "count_if": (exp.CountIf,),
    "sum": (exp.Sum,),
    "avg": (exp.Avg,),
    "bool_and": (exp.LogicalAnd,),
    "bool_or": (exp.LogicalOr,),
    "stddev_samp": (exp.Stddev, exp.StddevSamp),
    "stddev_pop": (exp.StddevPop,),
    "var_samp": (exp.Variance,),
    "var_pop": (exp.VariancePop,),
    "min": (exp.Min,),
    "max": (exp.Max,),
}


def _argument(call: exp.Expr) -> exp.Expr:
    found: exp.Expr = call.expressions[0] if isinstance(call, exp.Anonymous) else call.this
    return found


def _where(value: exp.Expr, condition: exp.Expr | None) -> exp.Expr:
    if condition is None:
        return value
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value)])


def _present(arguments: list[exp.Expr], condition: exp.Expr | None) -> exp.Expr:
    """1 where all arguments are there (and the FILTER condition is true), else NULL."""
    tests: list[exp.Expr] = [
        exp.Not(this=exp.Is(this=exp.Paren(this=a.copy()), expression=exp.Null())) for a in arguments
    ]
    if condition is not None:
        tests.append(exp.Paren(this=condition.copy()))
    one = exp.Literal.number(1)
    return exp.Case(ifs=[exp.If(this=exp.and_(*tests), true=one)]) if tests else one


def _count(call: exp.Expr, condition: exp.Expr | None, type_of: TypeOf, result: str) -> Kept:
    arguments = [call.this, *call.expressions] if call.this is not None else list(call.expressions)
    arguments = [a for a in arguments if not isinstance(a, (exp.Star, exp.Literal))]
    return Kept((Accumulator(_present(arguments, condition), "bigint"),), lambda a: a[0])


def _count_if(call: exp.Expr, condition: exp.Expr | None, type_of: TypeOf, result: str) -> Kept:
    test = exp.Paren(this=_argument(call).copy())
    term = _present([], test if condition is None else exp.and_(test, exp.Paren(this=condition.copy())))
    return Kept((Accumulator(term, "bigint"),), lambda a: a[0])


def _bool(call: exp.Expr, condition: exp.Expr | None, wanted: bool) -> Kept:
    value = _argument(call)
    hit = exp.Paren(this=value.copy()) if wanted else exp.Not(this=exp.Paren(this=value.copy()))
    count = Accumulator(_present([value], condition), "bigint")
    hits = Accumulator(
        _present([], hit if condition is None else exp.and_(hit, exp.Paren(this=condition.copy()))), "bigint"
    )
    test = "> 0" if wanted else "= 0"
    return Kept((count, hits), lambda a: f"CASE WHEN {a[0]} > 0 THEN {a[1]} {test} END")


def _sum_type(kind: str) -> str | None:
    """The exact type in which values of `kind` are summed, or None for FLOAT and DOUBLE."""
    if kind in _SMALL:
        return "bigint"
    if kind == "bigint":
        return "decimal(38,0)"
    if kind.startswith("decimal("):
        return f"decimal(38,{kind[8:-1].split(',')[1]})"
    return None


def _sum(call: exp.Expr, condition: exp.Expr | None, type_of: TypeOf, result: str) -> Kept | None:
    value = _argument(call)
    kind = type_of(value)
    count = Accumulator(_present([value], condition), "bigint")
    exact = _sum_type(kind)
    if exact is None and kind not in ("float", "double"):
        return None
    total = Accumulator(_where(exp.Paren(this=value.copy()), condition), exact or "double", exact is not None)
    return Kept((count, total), lambda a: f"CASE WHEN {a[0]} > 0 THEN CAST({a[1]} AS {result}) END")


def _avg(call: exp.Expr, condition: exp.Expr | None, type_of: TypeOf, result: str) -> Kept | None:
    kept = _sum(call, condition, type_of, result)
    if kept is None:
        return None
    kind = type_of(_argument(call))
    if kind.startswith("decimal("):
        precision, scale = (int(n) for n in kind[8:-1].split(","))
        share = _decimal_share(precision, scale, result)
        if share is None:
            return None
        value = "CASE WHEN {0} > 0 THEN " + share + " END"
    else:
        value = "CASE WHEN {0} > 0 THEN CAST({1} AS double) / {0} END"
    return Kept(kept.accumulators, lambda a: value.format(*a))


def _decimal_share(precision: int, scale: int, result: str) -> str | None:
    """{1} / {0} rounded once to `result`, as Spark's AVG rounds; None where Spark's decimals are too narrow for it.

    Spark cuts the scale of a quotient to keep its integer digits. Where that leaves too few digits behind the
    result's scale, the whole part and the remainder's share are divided each by itself.
    """
    if precision <= 14:
        total = f"CAST({{1}} AS decimal({precision + 10},{scale}))"
        return f"CAST({total} / CAST({{0}} AS decimal(20,0)) AS {result})"
    if precision > 27 or scale > 12:
        return None
    total, count = f"CAST({{1}} AS decimal({precision + 10},{scale}))", "CAST({0} AS decimal(12,0))"
    whole = f"CAST(({total} - {total} % {count}) / {count} AS {result})"
    share = f"CAST(CAST({total} % {count} AS decimal({12 + scale},{scale})) / {count} AS {result})"
    return f"CAST({whole} + {share} AS {result})"


def _variance(
    call: exp.Expr, condition: exp.Expr | None, type_of: TypeOf, sample: bool, root: bool
) -> Kept | None:
    """(n Σx² − (Σx)²) / (n (n − 1)), exact up to the division for integers of at most 32 bits."""
    value = _argument(call)
    if type_of(value) not in _SMALL:
        return None
    count = Accumulator(_present([value], condition), "bigint")
    total = Accumulator(_where(exp.Paren(this=value.copy()), condition), "bigint")
    wide = exp.Cast(this=exp.Paren(this=value.copy()), to=exp.DataType.build("bigint", dialect="spark"))
    squares = Accumulator(
        _where(exp.Paren(this=exp.Mul(this=wide, expression=wide.copy())), condition), "decimal(38,0)"
    )
    least = 1 if sample else 0

    def result(a: tuple[str, ...]) -> str:
        n, s, q = a
        exact = f"CAST({n} AS decimal(18,0)) * {q} - CAST({s} AS decimal(19,0)) * CAST({s} AS decimal(19,0))"
        spread = f"CAST({exact} AS double)"
        divisor = f"CAST({n} AS double) * ({n} - 1)" if sample else f"CAST({n} AS double) * {n}"
        share = f"{spread} / ({divisor})"
        return f"CASE WHEN {n} > {least} THEN {'sqrt(' + share + ')' if root else share} END"

    return Kept((count, total, squares), result)


_ORDERED = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "date", "binary", "string")
_ORDERED_FAMILIES = ("decimal(", "timestamp", "interval", "time(")


def _extremum(
    call: exp.Expr, condition: exp.Expr | None, type_of: TypeOf, result: str, kind: str
) -> Kept | None:
    """MIN and MAX of what has one order; strings that a collation holds equal have none."""
    if "collate" in result or not (result in _ORDERED or result.startswith(_ORDERED_FAMILIES)):
        return None
    term = _where(exp.Paren(this=_argument(call).copy()), condition)
    return Kept((Accumulator(term, result, kind=kind),), lambda a: a[0])


_Rule = Callable[[exp.Expr, "exp.Expr | None", TypeOf, str], "Kept | None"]
_RULES: dict[str, _Rule] = {
    "count": _count,
    "count_if": _count_if,
    "sum": _sum,
    "avg": _avg,
    "bool_and": lambda c, w, t, r: _bool(c, w, wanted=False),
    "bool_or": lambda c, w, t, r: _bool(c, w, wanted=True),
    "stddev_samp": lambda c, w, t, r: _variance(c, w, t, sample=True, root=True),
    "stddev_pop": lambda c, w, t, r: _variance(c, w, t, sample=False, root=True),
    "var_samp": lambda c, w, t, r: _variance(c, w, t, sample=True, root=False),
    "var_pop": lambda c, w, t, r: _variance(c, w, t, sample=False, root=False),
    "min": lambda c, w, t, r: _extremum(c, w, t, r, "min"),
    "max": lambda c, w, t, r: _extremum(c, w, t, r, "max"),
}


@dataclass(frozen=True)
class State:
    """How an Aggregate is stored: a table of its keys (`k0`, ...), the row count `_n` and accumulators (`a0`, ...)."""

    label: str
    kept: tuple[Kept, ...]

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(each for kept in self.kept for each in kept.accumulators)

    @property
    def exact(self) -> bool:
        """True if rows can be taken back from all accumulators."""
        return all(kept.exact for kept in self.kept)

    def columns(self, keys: int) -> tuple[str, ...]:
        numbers = range(len(self.accumulators))
        return (*(f"k{i}" for i in range(keys)), COUNT, *(f"a{i}" for i in numbers))
