"""Spark's SQL for defining queries: what is parsed is written back with the same meaning.

sqlglot's own Spark dialect is made to translate: it reads `listagg(x)` as GROUP_CONCAT and writes it with a comma,
reads `date_add` and writes an INTERVAL. Here only the functions that the engine looks into have classes. All other
calls are `exp.Anonymous` and are written as they were read.
"""

# ruff: noqa: RUF012 - sqlglot declares its tables as class attributes
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generator import Generator as AnyGenerator
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from cq_engine.algebra.call_syntax import parse_any, parse_position, parse_struct, parse_trim, parse_words
from cq_engine.algebra.calls import FUNCTIONS
from cq_engine.algebra.pipes import read_pipe
from cq_engine.algebra.variant_paths import variant_path
from cq_engine.grammar.nesting import MAX_LEVELS

__all__ = ["CQSpark", "parse_expression", "write"]

_E = TypeVar("_E", bound=exp.Expr)
_SUFFIX, _TYPED = "cq_suffix", "cq_typed"
"""Meta keys of a Cast: the suffix of a number (`10L`), and that it is a typed literal (`DATE '2020-01-01'`)."""
_SUFFIXES = ("L", "S", "Y", "D", "F", "BD")

# sqlglot and the passes over its trees make up to 40 calls for one level of a statement.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 50 * MAX_LEVELS))


def parse_expression(text: str) -> exp.Expr:
    """Spark SQL (a query or an expression) as a tree. Raises sqlglot's ParseError and TokenError."""
    return sqlglot.parse_one(text, dialect=CQSpark)


def write(tree: exp.Expr) -> str:
    """A tree as Spark SQL."""
    return str(tree.sql(dialect=CQSpark))


# ---------------------------------------------------------------- the dialect


class UnsignedShift(exp.Expression, exp.Binary, exp.Func):
    """`a >>> b`."""


_BITS: tuple[tuple[TokenType, type[exp.Expr]], ...] = (
    (TokenType.PIPE, exp.BitwiseOr),
    (TokenType.CARET, exp.BitwiseXor),
    (TokenType.AMP, exp.BitwiseAnd),
)


class CQParser(SparkParser):
    """Calls without a class in `FUNCTIONS` are Anonymous."""

    FUNCTIONS = {name.upper(): build for name, build in FUNCTIONS.items()}
    FUNCTION_PARSERS = {
        name: SparkParser.FUNCTION_PARSERS[name]
        for name in ("CAST", "TRY_CAST", "EXTRACT", "LISTAGG", "STRING_AGG")
    } | {
        "STRUCT": parse_struct,
        "OVERLAY": parse_words("overlay", "PLACING", "FROM", "FOR"),
        "SUBSTR": parse_words("substr", "FROM", "FOR"),
        "SUBSTRING": parse_words("substring", "FROM", "FOR"),
        "POSITION": parse_position,
        "TRIM": parse_trim,
    }
    NO_PAREN_FUNCTION_PARSERS = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"], "ANY": parse_any} | {
        "IF": SparkParser.NO_PAREN_FUNCTION_PARSERS["IF"],
    }

    # Spark has one precedence for all comparisons: a = b < c is (a = b) < c.
    EQUALITY: ClassVar[dict[TokenType, type[exp.Binary]]] = {}
    COMPARISON = {**SparkParser.EQUALITY, **SparkParser.COMPARISON}
    TERM = {TokenType.DASH: exp.Sub, TokenType.PLUS: exp.Add, TokenType.DPIPE: exp.DPipe}
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, type[exp.Func]]] = {}
    EXPONENT = {TokenType.COLLATE: exp.Collate}
    COLON_IS_VARIANT_EXTRACT = True
    ADD_JOIN_ON_TRUE = False

    def _parse_colon_as_variant_extract(self, this: exp.Expr | None) -> exp.Expr | None:
        return variant_path(self, this)

    def _parse_pipe_syntax_query(self, query: exp.Query) -> exp.Query | None:
        return read_pipe(self, query)

    def _parse_bitwise(self) -> exp.Expr | None:
        """Spark's precedence, from the weakest: | then ^ then & then shifts then + - ||."""
        return self._bits(0)

    def _bits(self, level: int) -> exp.Expr | None:
        if level == len(_BITS):
            return self._shift()
        token, kind = _BITS[level]
        left = self._bits(level + 1)
        while left is not None and self._match(token):
            left = self.expression(kind(this=left, expression=self._bits(level + 1)))
        return left

    def _shift(self) -> exp.Expr | None:
        left = self._parse_term()
        while left is not None:
            if self._match_pair(TokenType.LT, TokenType.LT):
                kind: type[exp.Expr] = exp.BitwiseLeftShift
            elif self._match_pair(TokenType.GT, TokenType.GT):
                kind = UnsignedShift if self._match(TokenType.GT) else exp.BitwiseRightShift
            else:
                break
            left = self.expression(kind(this=left, expression=self._parse_term()))
        return left

    def _parse_exponent(self) -> exp.Expr | None:
        made = super()._parse_exponent()
        if isinstance(made, exp.Collate):
            self._normalize_collate(made)
        return made

    def _parse_interval(  # type: ignore[override]  # any expression will do for the callers
        self, require_interval: bool = True, parse_function_unit: bool = True
    ) -> exp.Expr | None:
        """INTERVAL 1 DAY 2 HOURS is a sum, which is one operand."""
        made = super()._parse_interval(require_interval, parse_function_unit)
        return exp.Paren(this=made) if isinstance(made, exp.Add) else made

    def _parse_primary(self) -> exp.Expr | None:
        """Literals beside each other are one."""
        made = super()._parse_primary()
        if isinstance(made, exp.Concat):
            return exp.Literal.string("".join(each.name for each in made.expressions))
        return made

    def _parse_unary(self) -> exp.Expr | None:
        """`-1::string` casts the number -1."""
        number = self._curr.token_type == TokenType.DASH and self._next.token_type == TokenType.NUMBER
        made = super()._parse_unary()
        if not number or not isinstance(made, exp.Neg) or not isinstance(made.this, exp.Cast):
            return made
        whole = inner = made.this
        while isinstance(inner.this, exp.Cast):
            inner = inner.this
        if _SUFFIX not in inner.meta:
            inner.set("this", exp.Neg(this=inner.this.copy()))
            return whole
        if inner is whole:
            return made
        inner.replace(exp.Neg(this=inner.copy()))
        return whole

    def _parse_window(self, this: exp.Expr | None, alias: bool = False) -> exp.Expr | None:
        """sqlglot takes IGNORE NULLS out of a call, also where it stands in a call within this one."""
        if not isinstance(this, exp.AggFunc):
            return super()._parse_window(this, alias)
        value = this.this
        if isinstance(value, (exp.IgnoreNulls, exp.RespectNulls)) and not isinstance(value.this, exp.AggFunc):
            this.set("this", value.this)
            return super()._parse_window(type(value)(this=this), alias)
        if this.find(exp.IgnoreNulls, exp.RespectNulls) is None:
            return super()._parse_window(this, alias)
        holder = exp.Paren(this=exp.Null())
        made = super()._parse_window(holder, alias)
        if made is holder:
            return this
        holder.replace(this)
        return made

    def _parse_value(self, values: bool = True) -> exp.Tuple | None:
        """VALUES 1, 2 AS t(x): the alias is that of the table."""
        if self._match(TokenType.L_PAREN, advance=False):
            return super()._parse_value(values)
        value = self._parse_disjunction()
        return exp.Tuple(expressions=[value]) if value is not None else None

    def _parse_types(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        if kwargs.get("check_func") and self._next.token_type == TokenType.L_PAREN:
            return None
        if self._curr.text.upper() == "VOID" and not kwargs.get("check_func"):
            self._advance()
            return exp.DataType(this=exp.DType.NULL)
        return super()._parse_types(*args, **kwargs)

    def validate_expression(self, expression: _E, args: list[Any] | None = None) -> _E:  # noqa: ARG002
        """Without the arguments: the builders have counted them."""
        return super().validate_expression(expression)

    def build_cast(self, strict: bool, **kwargs: Any) -> exp.Expr:
        suffix, value = self._prev.text, kwargs.get("this")
        made = super().build_cast(strict, **kwargs)
        if suffix.upper() in _SUFFIXES and isinstance(value, exp.Literal) and not value.is_string:
            made.meta[_SUFFIX] = f"{value.this}{suffix}"
        return made

    def _parse_type(
        self, parse_interval: bool = True, fallback_to_identifier: bool = False
    ) -> exp.Expr | None:
        start = self._curr
        if start.text in ("x", "X") and self._next.token_type == TokenType.STRING:
            self._advance(2)
            return self._parse_column_ops(exp.HexString(this=self._prev.text))
        made = super()._parse_type(parse_interval, fallback_to_identifier)
        if isinstance(made, exp.Cast) and isinstance(made.this, exp.Literal) and made.this.is_string:
            word = start.text.upper()
            if word in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIME"):
                made.meta[_TYPED] = word
        return made


def _core(node: exp.Expr) -> tuple[exp.Expr, str, list[exp.Expr], str]:
    """A call, its WITHIN GROUP, its FILTER conditions, and its word on NULLs, in whatever order they are nested."""
    within, nulls = "", ""
    conditions: list[exp.Expr] = []
    while True:
        if isinstance(node, exp.Filter):
            conditions.insert(0, node.expression.this)
        elif isinstance(node, exp.WithinGroup):
            within = " WITHIN GROUP (" + write(node.expression).strip() + ")"
        elif isinstance(node, (exp.IgnoreNulls, exp.RespectNulls)):
            nulls = nulls or (" IGNORE NULLS" if isinstance(node, exp.IgnoreNulls) else " RESPECT NULLS")
        else:
            return node, within, conditions, nulls
        node = node.this


def _wrap(generator: CQGenerator, node: exp.Expr) -> str:
    """Spark's order: f(x) WITHIN GROUP (ORDER BY y) FILTER (WHERE c) IGNORE NULLS."""
    core, within, conditions, nulls = _core(node)
    where = ""
    if conditions:
        both = conditions[0] if len(conditions) == 1 else exp.and_(*conditions)
        where = f" FILTER(WHERE {generator.sql(both)})"
    return f"{generator.sql(core)}{within}{where}{nulls}"


def _call_by_name(name: str, *keys: str) -> Callable[[CQGenerator, exp.Expr], str]:
    """A call by its Spark name, with the arguments under `keys`."""

    def generate(generator: CQGenerator, node: exp.Expr) -> str:
        arguments: list[exp.Expr] = []
        for key in keys:
            value = node.args.get(key)
            arguments += value if isinstance(value, list) else [value] if value is not None else []
        return str(generator.func(name, *arguments))

    return generate


def _listagg(generator: CQGenerator, node: exp.GroupConcat) -> str:
    value, order = node.this, ""
    if isinstance(value, exp.Order):
        order = f" WITHIN GROUP ({generator.sql(exp.Order(expressions=value.expressions)).strip()})"
        value = value.this
    separator = node.args.get("separator")
    return str(generator.func("listagg", value, *([separator] if separator is not None else []))) + order


def _operator(symbol: str) -> Callable[[CQGenerator, exp.Binary], str]:
    return lambda generator, node: str(generator.binary(node, symbol))


_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Not, exp.Is, exp.In, exp.Between)


def _null_safe(generator: CQGenerator, node: exp.NullSafeEQ) -> str:
    """`<=>` for IS NOT DISTINCT FROM, which binds weaker."""
    sides = (node.this, node.expression)
    return " <=> ".join(
        f"({generator.sql(e)})" if isinstance(e, _COMPARISONS) else generator.sql(e) for e in sides
    )


class CQGenerator(SparkGenerator):
    """Writes calls by their Spark names and literals as they were."""

    TRANSFORMS = {
        **SparkGenerator.TRANSFORMS,
        exp.Filter: _wrap,
        exp.IgnoreNulls: _wrap,
        exp.RespectNulls: _wrap,
        exp.WithinGroup: _wrap,
        exp.GroupConcat: _listagg,
        exp.ArgMax: _call_by_name("max_by", "this", "expression", "count"),
        exp.ArgMin: _call_by_name("min_by", "this", "expression", "count"),
        exp.ArrayAgg: _call_by_name("collect_list", "this"),
        exp.ArrayUniqueAgg: _call_by_name("collect_set", "this"),
        exp.LogicalAnd: _call_by_name("bool_and", "this"),
        exp.LogicalOr: _call_by_name("bool_or", "this"),
        exp.Mode: _call_by_name("mode", "this", "deterministic"),
        exp.NthValue: _call_by_name("nth_value", "this", "offset"),
        exp.Lag: _call_by_name("lag", "this", "offset", "default"),
        exp.Lead: _call_by_name("lead", "this", "offset", "default"),
        exp.Min: _call_by_name("min", "this"),
        exp.Max: _call_by_name("max", "this"),
        exp.Greatest: _call_by_name("greatest", "this", "expressions"),
        exp.Least: _call_by_name("least", "this", "expressions"),
        exp.Coalesce: _call_by_name("coalesce", "this", "expressions"),
        exp.AnyValue: _call_by_name("any_value", "this"),
        exp.NullSafeEQ: _null_safe,
        exp.IntDiv: _operator("DIV"),
        exp.Div: _operator("/"),
        exp.Mod: _operator("%"),
        exp.DPipe: _operator("||"),
        exp.BitwiseLeftShift: _operator("<<"),
        exp.BitwiseRightShift: _operator(">>"),
        UnsignedShift: _operator(">>>"),
    }
    SUPPORTS_TEMPORAL_PRECISION = True
    TYPE_MAPPING = {**SparkGenerator.TYPE_MAPPING, exp.DType.TIME: "TIME", exp.DType.NULL: "VOID"}

    def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
        meta = expression.meta if expression.args else {}
        if _SUFFIX in meta and isinstance(expression.this, exp.Literal):
            return str(meta[_SUFFIX])
        if _TYPED in meta and isinstance(expression.this, exp.Literal):
            return f"{meta[_TYPED]} {self.sql(expression, 'this')}"
        return str(AnyGenerator.cast_sql(self, expression, safe_prefix))

    def trycast_sql(self, expression: exp.TryCast) -> str:
        return self.cast_sql(expression, "TRY_")


class CQSpark(Spark):
    """The dialect of defining queries."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']

    Parser = CQParser
    Generator = CQGenerator
