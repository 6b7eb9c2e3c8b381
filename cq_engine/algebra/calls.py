"""Function calls of Spark: which have classes that the engine looks into, and how these are built.

All others are `exp.Anonymous`. A call whose arguments do not fit its class stays one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

__all__ = ["FUNCTIONS", "SPARK_NAMES", "call", "field_name"]

Build = Callable[[list[exp.Expr]], exp.Expr]


def call(name: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    """A call that stays as it is written."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def _plain(arguments: Sequence[exp.Expr]) -> bool:
    """No named argument, and no DISTINCT over several arguments."""
    return not any(
        isinstance(a, exp.Kwarg) or (isinstance(a, exp.Distinct) and len(a.expressions) > 1)
        for a in arguments
    )


def _build_call(name: str, kind: type[exp.Expr], *keys: str, least: int = 1) -> Build:
    """A call as `kind` with its arguments under `keys`; what does not fit stays as it is written."""

    def build(arguments: list[exp.Expr]) -> exp.Expr:
        if not least <= len(arguments) <= len(keys) or not _plain(arguments):
            return call(name, arguments)
        return kind(**dict(zip(keys, arguments)))

    return build


def _passing_nulls(name: str, kind: type[exp.Expr], *keys: str, least: int = 1) -> Build:
    """Likewise; a further literal argument says whether NULLs are ignored."""
    build = _build_call(name, kind, *keys, least=least)

    def checked(arguments: list[exp.Expr]) -> exp.Expr:
        if len(arguments) == len(keys) + 1 and isinstance(arguments[-1], exp.Boolean):
            made = build(arguments[:-1])
            return exp.IgnoreNulls(this=made) if arguments[-1].this else made
        return build(arguments)

    return checked


def _many(name: str, kind: type[exp.Expr], **more: object) -> Build:
    def build(arguments: list[exp.Expr]) -> exp.Expr:
        if not arguments or not _plain(arguments):
            return call(name, arguments)
        return kind(this=arguments[0], expressions=arguments[1:], **more)

    return build


def _count(arguments: list[exp.Expr]) -> exp.Expr:
    if not arguments or any(isinstance(a, exp.Kwarg) for a in arguments):
        return call("count", arguments)
    return exp.Count(this=arguments[0], expressions=arguments[1:], big_int=True)


def _mode(arguments: list[exp.Expr]) -> exp.Expr:
    if (
        len(arguments) > 2
        or not _plain(arguments)
        or not all(isinstance(a, exp.Boolean) for a in arguments[1:])
    ):
        return call("mode", arguments)
    return exp.Mode(**dict(zip(("this", "deterministic"), arguments)))


def _with_unit(name: str) -> Build:
    """dateadd(DAY, 1, x): the unit is a word, not a column."""

    def build(arguments: list[exp.Expr]) -> exp.Expr:
        first = arguments[0] if len(arguments) == 3 else None
        if isinstance(first, exp.Column) and not first.table and not first.this.quoted:
            arguments = [exp.var(first.name), *arguments[1:]]
        return call(name, arguments)

    return build


def field_name(expression: exp.Expr) -> exp.Expr | None:
    """The name that Spark gives to a struct's field by its expression."""
    if isinstance(expression, exp.Column):
        return expression.this.copy() if isinstance(expression.this, exp.Identifier) else None
    if isinstance(expression, exp.Dot) and isinstance(expression.expression, exp.Identifier):
        return expression.expression.copy()
    if isinstance(expression, exp.Bracket) and len(expression.expressions) == 1:
        key = expression.expressions[0]
        return exp.to_identifier(key.name) if key.is_string else None
    return None


def _arrays_zip(arguments: list[exp.Expr]) -> exp.Expr:
    """Its fields have the names of the columns, which have others in a plan: named here, by their numbers."""
    names = [field_name(a) for a in arguments]
    if not any(names):
        return call("arrays_zip", arguments)
    element = exp.to_identifier("zipped")
    named: list[exp.Expr] = []
    for number, name in enumerate(names):
        field = exp.Dot(this=element.copy(), expression=exp.to_identifier(str(number), quoted=True))
        named += [exp.Literal.string(name.name if name else str(number)), field]
    zipped = call("arrays_zip", [call("concat", [a]) if n else a for a, n in zip(arguments, names)])
    return call("transform", [zipped, exp.Lambda(this=call("named_struct", named), expressions=[element])])


_ONE: dict[str, type[exp.Expr]] = {
    "sum": exp.Sum,
    "avg": exp.Avg,
    "mean": exp.Avg,
    "min": exp.Min,
    "max": exp.Max,
    "count_if": exp.CountIf,
    "bool_and": exp.LogicalAnd,
    "every": exp.LogicalAnd,
    "bool_or": exp.LogicalOr,
    "some": exp.LogicalOr,
    "any": exp.LogicalOr,
    "std": exp.Stddev,
    "stddev": exp.Stddev,
    "stddev_samp": exp.StddevSamp,
    "stddev_pop": exp.StddevPop,
    "variance": exp.Variance,
    "var_samp": exp.Variance,
    "var_pop": exp.VariancePop,
    "collect_set": exp.ArrayUniqueAgg,
    "collect_list": exp.ArrayAgg,
    "array_agg": exp.ArrayAgg,
}
_NULLS: dict[str, type[exp.Expr]] = {
    "first": exp.First,
    "first_value": exp.FirstValue,
    "last": exp.Last,
    "last_value": exp.LastValue,
    "any_value": exp.AnyValue,
}
_RANKING: dict[str, type[exp.Expr]] = {
    "row_number": exp.RowNumber,
    "rank": exp.Rank,
    "dense_rank": exp.DenseRank,
    "percent_rank": exp.PercentRank,
    "cume_dist": exp.CumeDist,
}
SPARK_NAMES: dict[type[exp.Expr], str] = {
    exp.ArgMax: "max_by",
    exp.ArgMin: "min_by",
    exp.ArrayAgg: "collect_list",
    exp.ArrayUniqueAgg: "collect_set",
    exp.GroupConcat: "listagg",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
}
"""Spark's names of functions whose classes have another."""
_UNITS = ("date_add", "dateadd", "timestampadd", "date_diff", "datediff", "timestampdiff", "timediff")
FUNCTIONS: dict[str, Build] = {
    **{name: _build_call(name, kind, "this") for name, kind in _ONE.items()},
    **{name: _passing_nulls(name, kind, "this") for name, kind in _NULLS.items()},
    **{name: _build_call(name, kind, least=0) for name, kind in _RANKING.items()},
    **{name: _with_unit(name) for name in _UNITS},
    "ntile": _build_call("ntile", exp.Ntile, "this", least=0),
    "lag": _passing_nulls("lag", exp.Lag, "this", "offset", "default"),
    "lead": _passing_nulls("lead", exp.Lead, "this", "offset", "default"),
    "nth_value": _passing_nulls("nth_value", exp.NthValue, "this", "offset", least=2),
    "max_by": _build_call("max_by", exp.ArgMax, "this", "expression", "count", least=2),
    "min_by": _build_call("min_by", exp.ArgMin, "this", "expression", "count", least=2),
    "mode": _mode,
    "count": _count,
    "coalesce": _many("coalesce", exp.Coalesce),
    "greatest": _many("greatest", exp.Greatest, ignore_nulls=True),
    "least": _many("least", exp.Least, ignore_nulls=True),
    "arrays_zip": _arrays_zip,
}
