"""Random SQL expressions that mean the same in Spark and in DuckDB.

The rules: no overflow, no division by zero, decimals are never divided, every literal says its type, and a *rough*
column (one whose last digits depend on the order of summation) is shown but never computed with or compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

INT, BIGINT, STRING, DOUBLE, FLOAT, DECIMAL, DATE, BOOLEAN = (
    "INT",
    "BIGINT",
    "STRING",
    "DOUBLE",
    "FLOAT",
    "DECIMAL(10,2)",
    "DATE",
    "BOOLEAN",
)
TYPES = (INT, BIGINT, STRING, DOUBLE, FLOAT, DECIMAL, DATE, BOOLEAN)
DOMAINS: dict[str, tuple[str, ...]] = {
    INT: ("-2", "0", "1", "2", "3", "5"),
    BIGINT: tuple(f"CAST({n} AS BIGINT)" for n in (-1, 0, 1, 2, 3, 3_000_000_000)),
    STRING: ("'a'", "'b'", "'c'", "''", "'B'"),
    DOUBLE: tuple(f"CAST({n} AS DOUBLE)" for n in ("-1.5", "0.0", "0.25", "0.1", "0.7", "2.0")),
    FLOAT: tuple(f"CAST({n} AS FLOAT)" for n in ("-1.5", "0.1", "0.7", "16777216", "3.25")),
    DECIMAL: tuple(f"CAST({n} AS DECIMAL(10,2))" for n in ("-1.25", "0.00", "0.10", "2.00", "99.99")),
    DATE: tuple(f"DATE '2024-0{m}-01'" for m in (1, 2, 3, 4)),
    BOOLEAN: ("TRUE", "FALSE"),
}
COMPARABLE = {INT: (INT, BIGINT), BIGINT: (BIGINT, INT)}

T = TypeVar("T")


@dataclass(frozen=True)
class Ref:
    """A column as SQL text; `rough` ones are only ever shown."""

    sql: str
    type: str
    rough: bool = False


class Maker:
    """Draws expressions; `draw` is what hypothesis gives to a composite strategy."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw

    def one(self, values: Sequence[T]) -> T:
        return self.draw(st.sampled_from(list(values)))  # type: ignore[no-any-return]

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[no-any-return]

    def chance(self, percent: int) -> bool:
        return self.number(1, 100) > 100 - percent

    def some(self, values: Sequence[T], least: int, most: int) -> list[T]:
        """From `least` to `most` of the values, in their order."""
        if not values:
            return []
        picked: list[int] = self.draw(
            st.lists(
                st.integers(0, len(values) - 1), min_size=least, max_size=min(most, len(values)), unique=True
            )
        )
        return [values[i] for i in sorted(picked)]

    # ------------------------------------------------------------ expressions

    def literal(self, kind: str) -> str:
        return self.one(DOMAINS[kind])

    def column(self, refs: Sequence[Ref], kind: str | None = None) -> str | None:
        fitting = [r.sql for r in refs if not r.rough and (kind is None or r.type == kind)]
        return self.one(fitting) if fitting else None

    def expression(self, refs: Sequence[Ref], kind: str, depth: int = 2) -> str:
        """An expression of type `kind` over `refs`."""
        found = self.column(refs, kind)
        if depth == 0 or self.chance(40):
            return found or self.literal(kind)
        shape = self.one(("case", "coalesce", "own", "own", "own"))
        if shape == "case":
            then, other = (self.expression(refs, kind, depth - 1) for _ in range(2))
            return f"CASE WHEN {self.predicate(refs, depth - 1)} THEN {then} ELSE {other} END"
        if shape == "coalesce":
            return f"COALESCE({self.expression(refs, kind, depth - 1)}, {self.literal(kind)})"
        return self._own(refs, kind, depth, found)

    def _own(self, refs: Sequence[Ref], kind: str, depth: int, found: str | None) -> str:
        """An expression with the operators of its type."""

        def sub(of: str) -> str:
            return self.expression(refs, of, depth - 1)

        shapes: tuple[Callable[[], str], ...]
        if kind == INT:
            shapes = (
                lambda: f"({sub(INT)} + {sub(INT)})", lambda: f"({sub(INT)} * {self.literal(INT)})",
                lambda: f"({sub(INT)} - {sub(INT)})", lambda: f"({sub(INT)} % 3)", lambda: f"abs({sub(INT)})",
                lambda: f"CAST(length({sub(STRING)}) AS INT)", lambda: f"NULLIF({sub(INT)}, {self.literal(INT)})",
            )  # fmt: skip
        elif kind == BIGINT:
            shapes = (lambda: f"({sub(BIGINT)} + {sub(INT)})", lambda: f"CAST({sub(INT)} AS BIGINT)")
        elif kind == STRING:
            shapes = (lambda: f"({sub(STRING)} || {sub(STRING)})", lambda: f"upper({sub(STRING)})",
                      lambda: f"CAST({sub(INT)} AS STRING)")  # fmt: skip
        elif kind == DOUBLE:
            shapes = (lambda: f"({sub(DOUBLE)} * {self.literal(DOUBLE)})", lambda: f"CAST({sub(INT)} AS DOUBLE)",
                      lambda: f"({sub(INT)} / NULLIF({sub(INT)}, 0))")  # fmt: skip
        elif kind == DECIMAL:
            shapes = (lambda: f"CAST({sub(DECIMAL)} + {sub(INT)} AS DECIMAL(10,2))",)
        elif kind == BOOLEAN:
            return f"({self.predicate(refs, depth - 1)})"
        else:
            return found or self.literal(kind)
        chosen: Callable[[], str] = self.one(shapes)
        return chosen()

    def predicate(self, refs: Sequence[Ref], depth: int = 1) -> str:
        """A condition that reads at least one column, if there is a usable one."""
        usable = [r for r in refs if not r.rough]
        if not usable:
            return "TRUE"
        if depth > 0 and self.chance(35):
            left, right = self.predicate(refs, depth - 1), self.predicate(refs, depth - 1)
            return self.one((f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"))
        ref = self.one(usable)
        others = [r.sql for r in usable if r.type == ref.type and r is not ref]
        other = self.one(others) if others and self.chance(50) else self.literal(ref.type)
        shapes = [f"{ref.sql} {op} {other}" for op in ("=", "<>", "<", ">=")]
        shapes += [f"{ref.sql} IS NULL", f"{ref.sql} IS NOT NULL", f"{ref.sql} IS DISTINCT FROM {other}"]
        shapes.append(f"{ref.sql} IN ({self.literal(ref.type)}, {self.literal(ref.type)})")
        if ref.type == BOOLEAN:
            shapes = [ref.sql, f"NOT {ref.sql}", f"{ref.sql} IS NULL", f"COALESCE({ref.sql}, TRUE)"]
        elif ref.type == STRING:
            shapes.append(f"{ref.sql} LIKE 'a%'")
        elif ref.type != DATE:
            shapes.append(f"{ref.sql} BETWEEN {self.literal(ref.type)} AND {self.literal(ref.type)}")
        return self.one(shapes)
