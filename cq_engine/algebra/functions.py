"""Which functions are aggregates, which are not deterministic: Spark's, as our dialect reads them."""

from __future__ import annotations

from sqlglot import exp

from cq_engine.algebra.calls import SPARK_NAMES

__all__ = [
    "OF_CHANCE",
    "OF_SESSION",
    "OF_TIME",
    "aggregate_calls",
    "call_name",
    "conjuncts",
    "is_aggregate",
    "nondeterministic_call",
    "not_in_operands",
    "only_where",
]

_AGGREGATES = frozenset(
    [
        "any",
        "any_value",
        "approx_count_distinct",
        "approx_percentile",
        "approx_top_k",
        "approx_top_k_accumulate",
        "approx_top_k_combine",
        "array_agg",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bitmap_and_agg",
        "bitmap_construct_agg",
        "bitmap_or_agg",
        "bool_and",
        "bool_or",
        "collect_list",
        "collect_set",
        "collect_union",
        "corr",
        "count",
        "count_if",
        "count_min_sketch",
        "covar_pop",
        "covar_samp",
        "every",
        "first",
        "first_value",
        "grouping",
        "grouping_id",
        "histogram_numeric",
        "hll_sketch_agg",
        "hll_union_agg",
        "kll_merge_agg_bigint",
        "kll_merge_agg_double",
        "kll_merge_agg_float",
        "kll_sketch_agg_bigint",
        "kll_sketch_agg_double",
        "kll_sketch_agg_float",
        "kurtosis",
        "last",
        "last_value",
        "listagg",
        "max",
        "max_by",
        "mean",
        "measure",
        "median",
        "min",
        "min_by",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_cont",
        "percentile_disc",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "schema_of_variant_agg",
        "skewness",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "string_agg",
        "sum",
        "theta_intersection_agg",
        "theta_sketch_agg",
        "theta_union_agg",
        "try_avg",
        "try_sum",
        "tuple_intersection_agg_double",
        "tuple_intersection_agg_integer",
        "tuple_sketch_agg_double",
        "tuple_sketch_agg_integer",
        "tuple_union_agg_double",
        "tuple_union_agg_integer",
        "var_pop",
        "var_samp",
        "variance",
        "vector_avg",
        "vector_sum",
    ]
)
OF_TIME = frozenset(
    ["current_date", "current_time", "current_timestamp", "curdate", "localtime", "localtimestamp", "now"]
)
"""Functions with another value at another time."""
OF_SESSION = frozenset(
    [
        "current_catalog",
        "current_database",
        "current_path",
        "current_schema",
        "current_timezone",
        "current_user",
        "session_user",
        "user",
        "version",
    ]
)
"""Functions with another value in another Spark session."""
OF_CHANCE = frozenset(
    [
        "input_file_block_length",
        "input_file_block_start",
        "input_file_name",
        "java_method",
        "monotonically_increasing_id",
        "rand",
        "randn",
        "random",
        "randstr",
        "reflect",
        "shuffle",
        "spark_partition_id",
        "try_reflect",
        "uniform",
        "uuid",
    ]
)
"""Functions with another value in another computation."""
_NONDETERMINISTIC = OF_TIME | OF_SESSION | OF_CHANCE | {"unix_timestamp"}
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)


def call_name(node: exp.Expr) -> str:
    """The Spark name of a function call, lower case; empty for other expressions."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    if isinstance(node, exp.Func):
        return SPARK_NAMES.get(type(node)) or str(node.sql_name()).lower()
    return ""


def is_aggregate(node: exp.Expr) -> bool:
    """True for an aggregate call with all that is wrapped around it (FILTER, IGNORE NULLS, WITHIN GROUP)."""
    if isinstance(node, _WRAPPERS):
        return is_aggregate(node.this)
    if isinstance(node, exp.AggFunc):
        return True
    return isinstance(node, exp.Anonymous) and node.name.lower() in _AGGREGATES


def aggregate_calls(root: exp.Expr) -> list[exp.Expr]:
    """The outermost aggregate calls in `root`, not those inside windows or subqueries."""
    found: list[exp.Expr] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.Query):
            continue
        if isinstance(node, exp.Window):
            pending.extend(_window_parts(node))
        elif is_aggregate(node):
            found.append(node)
        else:
            pending.extend(node.iter_expressions())
    return found


def _window_parts(window: exp.Window) -> list[exp.Expr]:
    inner = window.this
    while isinstance(inner, _WRAPPERS):
        inner = inner.this
    parts = list(inner.iter_expressions())
    parts += [each for key, each in _arguments(window) if key != "this"]
    return parts


def _arguments(node: exp.Expr) -> list[tuple[str, exp.Expr]]:
    found = []
    for key, value in node.args.items():
        values = value if isinstance(value, list) else [value]
        found += [(key, each) for each in values if isinstance(each, exp.Expr)]
    return found


def nondeterministic_call(root: exp.Expr) -> exp.Expr | None:
    """The first call in `root` whose value is not a function of the tables' rows, or None."""
    for node in root.walk():
        if isinstance(node, exp.TableSample):
            return node
        if isinstance(
            node, (exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime, exp.CurrentUser, exp.SessionUser)
        ):
            return node
        name = call_name(node)
        if name in _NONDETERMINISTIC and not (name == "unix_timestamp" and node.expressions):
            return node
        if name == "aes_encrypt" and len(node.expressions) < 5 and not _is_ecb(node):
            return node
        if (
            isinstance(node, exp.Column)
            and not node.table
            and node.name.lower() in ("current_date", "current_timestamp")
        ):
            return node
    return None


def _is_ecb(call: exp.Expr) -> bool:
    """Does aes_encrypt say that it is to use no vector, which otherwise it chooses by chance?"""
    mode = call.expressions[2] if len(call.expressions) > 2 else None
    return isinstance(mode, exp.Literal) and mode.name.upper() == "ECB"


def only_where(call: exp.Expr, condition: exp.Expr) -> exp.Expr:
    """The aggregate call over just the rows for which `condition` holds; IGNORE NULLS stays outside of FILTER."""
    if isinstance(call, (exp.IgnoreNulls, exp.RespectNulls)):
        return type(call)(this=only_where(call.this, condition))
    if isinstance(call, exp.Filter):
        both = exp.and_(call.expression.this.copy(), condition.copy())
        return exp.Filter(this=call.this.copy(), expression=exp.Where(this=both))
    if isinstance(call, (exp.Coalesce, exp.Cast, exp.Paren)):
        result = call.copy()
        result.set("this", only_where(call.this, condition))
        return result
    return exp.Filter(this=call.copy(), expression=exp.Where(this=condition.copy()))


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """The parts of a conjunction."""
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        return [part for side in (bare.left, bare.right) for part in conjuncts(side)]
    return [bare]


def not_in_operands(condition: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
    """(a, b) where `condition` is the match of NOT IN, `a = b OR a IS NULL OR b IS NULL`."""
    parts = list(condition.unnest().flatten()) if isinstance(condition.unnest(), exp.Or) else []
    equal = [p for p in (each.unnest() for each in parts) if isinstance(p, exp.EQ)]
    null = [p.unnest().this.unnest() for p in parts if _is_null(p.unnest())]
    if len(parts) != 3 or len(equal) != 1 or len(null) != 2:
        return None
    a, b = equal[0].left, equal[0].right
    same = {a.unnest().sql(), b.unnest().sql()} == {n.sql() for n in null}
    return (a, b) if same else None


def _is_null(expression: exp.Expr) -> bool:
    return isinstance(expression, exp.Is) and isinstance(expression.expression, exp.Null)
