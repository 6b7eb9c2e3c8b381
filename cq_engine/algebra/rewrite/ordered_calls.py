"""Aggregate functions that depend on the order of rows, with that order made deterministic.

    first(x)         min_by(x, i)                       last(x)     max_by(x, i)        any_value(x) as first(x)
    collect_list(x)  sort_array(collect_list((i, x))).x
    min_by(x, y)     min_by(x, (y, i))                  mode(x)     mode(x, true)
    collect_set(x)   sort_array(collect_set(x))         listagg(x)  array_join(collect_list(x) as above)
    collect_union(x) sort_array(collect_union(x))

`i` is the identity of a row. NULLs that a function passes over (IGNORE NULLS; x of collect_list; y of min_by) are
ordered by NULL, which min_by and max_by pass over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.analysis.identity import Identity, is_ordered
from cq_engine.algebra.functions import call_name

__all__ = [
    "FIRST",
    "LAST",
    "Call",
    "OrderedCall",
    "approximate",
    "collect",
    "extreme",
    "is_numbering",
    "is_positional",
    "is_set",
    "ordered_call",
    "unwrap",
]

FIRST = (exp.First, exp.FirstValue, exp.AnyValue)
LAST = (exp.Last, exp.LastValue)
_APPROXIMATE = frozenset(
    ["approx_percentile", "percentile_approx", "approx_quantile", "histogram_numeric", "approx_top_k"]
)
"""What these give depends on the order in which Spark merges rows, and no order can be asked for."""
Identify = Callable[[Sequence[exp.Expr]], Identity]
"""The identity of the input's rows among those that agree in the given columns (and in the keys)."""
_SKETCHES = ("kll_sketch_agg", "hll_sketch_agg", "approx_top_k_accumulate")


@dataclass(frozen=True)
class Call:
    """An aggregate call without what is wrapped around it."""

    core: exp.Expr
    where: exp.Expr | None = None
    ignore_nulls: bool = False
    respect_nulls: bool = False

    def close(self, core: exp.Expr) -> exp.Expr:
        """`core` with the FILTER of this call."""
        if self.where is None:
            return core
        return exp.Filter(this=core, expression=exp.Where(this=self.where.copy()))


@dataclass(frozen=True)
class OrderedCall:
    """A call that no order of rows changes; `shown` makes the wanted value of its result.

    `numbers` is the order of a window that gives different values to rows which are equal in all columns, else empty.
    """

    call: exp.Expr
    shown: Callable[[exp.Expr], exp.Expr] | None = None
    numbers: str = ""


def unwrap(call: exp.Expr) -> Call:
    """The parts of an aggregate call (or of the function of a window)."""
    where, ignore, respect = None, False, False
    while isinstance(call, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)):
        if isinstance(call, exp.Filter):
            where = call.expression.this
        ignore = ignore or isinstance(call, exp.IgnoreNulls)
        respect = respect or isinstance(call, exp.RespectNulls)
        call = call.this
    return Call(call, where, ignore, respect)


def is_positional(call: Call) -> bool:
    """Does the value depend on the positions of rows in the order, so that a complete order of rows makes it certain?"""
    return isinstance(call.core, (*FIRST, *LAST, exp.NthValue, exp.ArrayAgg)) and not is_set(call)


def is_set(call: Call) -> bool:
    """Does the call collect distinct values?"""
    collects = isinstance(call.core, exp.ArrayAgg) and isinstance(call.core.this, exp.Distinct)
    return collects or isinstance(call.core, exp.ArrayUniqueAgg) or call_name(call.core) == "collect_union"


def is_numbering(core: exp.Expr) -> bool:
    """Does the value of a window function depend on how many rows, or which, stand before or behind in the order?"""
    known = isinstance(core, (exp.RowNumber, exp.Ntile, exp.Lag, exp.Lead))
    return known or call_name(core) == "counter_diff"


def approximate(call: exp.Expr) -> bool:
    """True for functions whose value depends on the order of rows without any way to say one."""
    name = call_name(unwrap(call).core)
    return name in _APPROXIMATE or name.startswith(_SKETCHES)


def ordered_call(call: Call, identify: Identify, type_of: Callable[[exp.Expr], str]) -> OrderedCall | None:
    """The call with ordering broken by the rows' identity; None where it has none, or none can be broken.

    `type_of` gives the Spark type of an expression over the input.
    """
    core = call.core
    if isinstance(core, exp.GroupConcat):
        return _listagg(call, core, identify, type_of)
    if isinstance(core, exp.Mode) and core.this is not None:
        return OrderedCall(call.close(exp.Mode(this=core.this.copy(), deterministic=exp.true())))
    if is_set(call):
        kept = exp.RespectNulls(this=core.copy()) if call.respect_nulls else core.copy()
        return OrderedCall(call.close(kept), _sort) if is_ordered(type_of(_value(core))) else None
    if isinstance(core, (exp.ArgMin, exp.ArgMax)):
        identity = identify([core.expression])
        needed = identity.expressions or core.args.get("count") is not None
        return OrderedCall(call.close(_by(core, identity))) if needed else None
    if not is_positional(call):
        return None
    identity = identify([])
    if not identity.expressions:
        return None
    if isinstance(core, exp.ArrayAgg):
        return collect(call, identity.expressions, type_of(core.this), nulls=call.respect_nulls)
    return OrderedCall(extreme(call, _place(identity)))


def extreme(call: Call, place: exp.Expr) -> exp.Expr:
    """first, last or any_value as the value of the row with the least or greatest `place`."""
    value = _value(call.core)
    place = _where_present(value, place) if call.ignore_nulls else place
    name = "max_by" if isinstance(call.core, LAST) else "min_by"
    return call.close(_function(name, value, place))


def collect(
    call: Call, order: Sequence[exp.Expr], kind: str, nulls: bool, nth: exp.Expr | None = None
) -> OrderedCall:
    """The values of the call's argument, of type `kind`, in `order`, as an array; with `nth` one of them, from 1 on."""
    value = _value(call.core)
    row = _struct([("i", _struct([(f"i{n}", e) for n, e in enumerate(order)])), ("v", value)])
    element = row if nulls else _where_present(value, row)

    def shown(raw: exp.Expr) -> exp.Expr:
        rows = _sort(raw) if is_ordered(kind) else _function("array_sort", raw, _by_place())
        if nth is not None:
            before = exp.Sub(this=exp.Paren(this=nth.copy()), expression=exp.Literal.number(1))
            rows = _function("get", rows, before)
        return exp.Dot(this=rows, expression=exp.to_identifier("v"))

    return OrderedCall(call.close(_function("collect_list", element)), shown)


def _by(core: exp.Expr, identity: Identity) -> exp.Expr:
    """min_by or max_by over (y, identity); the count of the three-argument form, which sqlglot drops, is kept."""
    name = "min_by" if isinstance(core, exp.ArgMin) else "max_by"
    by = core.expression
    place = _struct([("y", by), *((f"i{n}", e) for n, e in enumerate(identity.expressions))])
    count = core.args.get("count")
    return _function(name, core.this, _where_present(by, place), *([count] if count is not None else []))


def _listagg(
    call: Call, core: exp.GroupConcat, identify: Identify, type_of: Callable[[exp.Expr], str]
) -> OrderedCall:
    """listagg without an order by way of an array; with one, and for binary values, by its own WITHIN GROUP.

    An array, because Spark fails on WITHIN GROUP beside DISTINCT aggregates. Here listagg stands by name, because
    sqlglot gives it a comma where there is no separator.
    """
    inner, order = core.this, []
    if isinstance(inner, exp.Order):
        inner, order = inner.this, list(inner.expressions)
    separator = core.args.get("separator")
    value = inner.expressions[0] if isinstance(inner, exp.Distinct) else inner
    if not order and type_of(value).startswith("string"):
        return _join(Call(exp.ArrayAgg(this=inner), call.where), identify, separator)
    made = _function("listagg", inner, *([separator] if separator is not None else []))
    if isinstance(inner, exp.Distinct):
        order = order or [exp.Ordered(this=value.copy(), nulls_first=True)]
    else:
        order += identify([o.this for o in order]).order()
    if not order:
        return OrderedCall(call.close(made))
    within = exp.Order(expressions=[o.copy() for o in order])
    return OrderedCall(call.close(exp.WithinGroup(this=made, expression=within)))


def _join(values: Call, identify: Identify, separator: exp.Expr | None) -> OrderedCall:
    """The values, which are strings, in the order of the identity (distinct ones in their own), NULL for none."""
    if is_set(values):
        array = OrderedCall(values.close(values.core.copy()), _sort)
    else:
        array = collect(values, identify([]).expressions, "string", nulls=False)
    between = exp.Literal.string("") if separator is None or isinstance(separator, exp.Null) else separator

    def shown(raw: exp.Expr) -> exp.Expr:
        assert array.shown is not None
        some = exp.GT(this=_function("size", raw), expression=exp.Literal.number(0))
        return exp.If(this=some, true=_function("array_join", array.shown(raw), between), false=exp.Null())

    return OrderedCall(array.call, shown)


def _value(core: exp.Expr) -> exp.Expr:
    value: exp.Expr = core.expressions[0] if isinstance(core, exp.Anonymous) else core.this
    return value.expressions[0] if isinstance(value, exp.Distinct) else value


def _place(identity: Identity) -> exp.Expr:
    """The identity as one value that is never NULL."""
    if len(identity.expressions) == 1 and identity.present:
        return identity.expressions[0].copy()
    return _struct([(f"i{n}", e) for n, e in enumerate(identity.expressions)])


def _where_present(value: exp.Expr, result: exp.Expr) -> exp.Expr:
    """`result` where `value` is not NULL, else NULL."""
    there = exp.Not(this=exp.Is(this=exp.Paren(this=value.copy()), expression=exp.Null()))
    return exp.If(this=there, true=result, false=exp.Null())


def _struct(fields: Sequence[tuple[str, exp.Expr]]) -> exp.Expr:
    return _function("named_struct", *(p for name, e in fields for p in (exp.Literal.string(name), e)))


def _sort(raw: exp.Expr) -> exp.Expr:
    return _function("sort_array", raw)


def _by_place() -> exp.Expr:
    """Compares two collected rows by their places alone."""

    def compared(kind: type[exp.Binary]) -> exp.Expr:
        left, right = (exp.Dot(this=exp.to_identifier(n), expression=exp.to_identifier("i")) for n in "lr")
        return kind(this=left, expression=right)

    ifs = [
        exp.If(this=compared(exp.LT), true=exp.Literal.number(-1)),
        exp.If(this=compared(exp.GT), true=exp.Literal.number(1)),
    ]
    body = exp.Case(ifs=ifs, default=exp.Literal.number(0))
    return exp.Lambda(this=body, expressions=[exp.to_identifier("l"), exp.to_identifier("r")])


def _function(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[a.copy() for a in arguments])
