"""What Arrow gives for a plan is what Spark gives for its SQL: each kind of node, over random rows with NULL, ties and twins."""

from __future__ import annotations

import datetime as dt
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import (
    FROM,
    TO,
    Aggregate,
    Distinct,
    Edges,
    Filter,
    Given,
    Join,
    Limit,
    Mark,
    Named,
    Node,
    OuterJoin,
    Project,
    SemiJoin,
    UnionAll,
    Values,
    Window,
)
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema, arrow_type
from cq_engine.evaluation.groups import is_sum_safe, numbers
from cq_engine.evaluation.joins import inner_join
from cq_engine.evaluation.nodes import Evaluation
from cq_engine.evaluation.statements import log_rows
from cq_engine.evaluation.vectors import Rows, TooLargeError, UnsupportedError, Vector
from cq_engine.planner.consolidate import consolidate
from tests.limits import many_rows

LEFT = (Column("k", "int"), Column("n", "bigint"), Column("p", "decimal(10,2)"), Column("s", "string"), Column("d", "double"),
        Column("f", "date"), Column(FROM, "bigint"), Column(TO, "bigint"))  # fmt: skip
RIGHT = (Column("k2", "bigint"), Column("n2", "int"), Column("s2", "string"), Column("q2", "decimal(20,0)"))
left, right = (Given(name, tuple(c.name for c in columns)) for name, columns in (("l", LEFT), ("r", RIGHT)))

ROWS_TO_HERE = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def _named(**items: str) -> Named:
    return tuple((name, parse_expression(text)) for name, text in items.items())


def _all(*texts: str) -> tuple[object, ...]:
    return tuple(parse_expression(text) for text in texts)


def _window(**functions: str) -> Node:
    """Functions over rows of which each has another place in the order."""
    keyed = Project(
        Aggregate(left, _named(k="k", s="s", p="p"), _named(m="max(n)", c="count(*)")),
        _named(k1="k", s1="s", p1="p", m1="m", c1="c"),
    )
    return Window(keyed, _named(**functions), ())


PLANS: dict[str, Node] = {
    "filter": Filter(left, parse_expression("n > 0 AND s <> 'b'")),
    "aggregate": Aggregate(
        left,
        _named(s="s", big="n > 0"),
        _named(a="sum(k)", b="sum(p)", c="min(n)", g="count(*)", h="count(p)", i="COALESCE(sum(CASE WHEN k > 1 THEN -p END), 0)", j="CAST(sum(n) AS DECIMAL(38, 0))"),
    ),
    "groups of double": Aggregate(left, _named(d="d"), _named(a="count(*)")),
    "distinct": Distinct(Project(left, _named(s="s", d="d", f="f", p="p"))),
    "union": UnionAll(
        (Project(left, _named(a="k", b="p", c="s", e="NULL")), Project(right, _named(a="k2", b="q2", c="s2", e="n2"))),
        ("a", "b", "c", "e"),
    ),
    "join": Join((left, right), _all("k = k2", "p > n2")),
    "join on several": Join((left, right), _all("s <=> s2", "k = n2", "n + 1 > k2")),
    "cross join": Join((Project(left, _named(k="k")), Values(("w",), (_all("1"), _all("-1")))), ()),
    "semi join": SemiJoin(left, right, False, _all("s = s2", "n < k2")),
    "anti join": SemiJoin(left, right, True, _all("s <=> s2")),
    "mark": Mark(left, right, _all("k = n2", "s2 IS NOT NULL"), "found"),
    **{f"{kind} join": OuterJoin(left, right, kind, _all("k = k2", "s > s2")) for kind in ("LEFT", "RIGHT", "FULL")},
    "edges": Edges(left),
    "running": _window(
        a=f"sum(m1) OVER (PARTITION BY k1 ORDER BY s1, p1 {ROWS_TO_HERE})",
        b=f"max(c1) OVER (PARTITION BY s1 ORDER BY k1 DESC, p1 {ROWS_TO_HERE})",
        e=f"min(p1) OVER (PARTITION BY s1 ORDER BY k1, p1 {ROWS_TO_HERE})",
        g="COALESCE(lead(p1) OVER (PARTITION BY k1 ORDER BY s1, p1), 0)",
        h="sum(p1) OVER (PARTITION BY s1)", i="max(p1) OVER (PARTITION BY k1, s1)", j="count(p1) OVER (PARTITION BY s1)",
    ),
    "frames": _window(
        a="sum(m1) OVER (PARTITION BY k1 ORDER BY s1)", b="count(*) OVER (PARTITION BY k1 ORDER BY s1 DESC)",
        d="avg(m1) OVER (PARTITION BY k1 ORDER BY s1, p1 ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
        e="sum(p1) OVER (PARTITION BY s1 ORDER BY k1, p1 ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
        f="count(p1) OVER (PARTITION BY s1 ORDER BY k1, p1 ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING)",
        g="sum(c1) OVER (PARTITION BY s1 ORDER BY k1, p1 ROWS BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING)",
        h="max(m1) OVER (PARTITION BY k1 ORDER BY s1)", i="min(p1) OVER (PARTITION BY k1 ORDER BY s1 DESC)",
        j="sum(m1) OVER (PARTITION BY k1 ORDER BY s1 RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
        l="max(c1) OVER (PARTITION BY k1 ORDER BY s1, p1 ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)",
        m="count(*) OVER (PARTITION BY k1)", n="avg(c1) OVER (PARTITION BY k1)", o="min(p1) OVER (PARTITION BY k1 ORDER BY s1, p1 ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        p="sum(m1) OVER (PARTITION BY k1 ORDER BY s1, p1 ROWS 1 PRECEDING)", q="count(*) OVER (ORDER BY k1 NULLS LAST)",
    ),
    "rows of frames": _window(
        a="lag(p1) OVER (PARTITION BY k1 ORDER BY s1, p1)", b="lag(s1, 2) OVER (PARTITION BY k1 ORDER BY s1 DESC, p1)",
        d="lead(m1, 3) OVER (PARTITION BY k1 ORDER BY s1, p1)", e="lag(m1, 0) OVER (PARTITION BY k1 ORDER BY s1, p1)",
        f="first_value(s1) OVER (PARTITION BY k1 ORDER BY s1, p1)", g="first(p1) OVER (PARTITION BY s1 ORDER BY k1, p1 ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        h="last_value(p1) OVER (PARTITION BY k1 ORDER BY s1, p1)", i="last(m1) OVER (PARTITION BY k1 ORDER BY s1, p1 ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING)",
        j="nth_value(p1, 2) OVER (PARTITION BY k1 ORDER BY s1, p1)", l="first_value(s1) OVER (PARTITION BY k1 ORDER BY s1, p1 ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING)",
        m="lag(m1, 1, NULL) OVER (PARTITION BY k1 ORDER BY s1, p1)",
    ),
    "ranks": _window(
        a="row_number() OVER (PARTITION BY k1 ORDER BY p1 DESC, s1)",
        b="rank() OVER (PARTITION BY k1 ORDER BY s1 DESC NULLS FIRST)",
        e="dense_rank() OVER (PARTITION BY s1 ORDER BY k1 NULLS LAST)",
        g="row_number() OVER (ORDER BY s1, k1, p1)",
        h="percent_rank() OVER (PARTITION BY k1 ORDER BY s1)", i="cume_dist() OVER (PARTITION BY s1 ORDER BY k1 DESC)",
    ),
}  # fmt: skip


def _table(columns: tuple[Column, ...], seed: int, count: int) -> pa.Table:
    chance = random.Random(seed)
    makers: dict[str, Callable[[], object]] = {
        "int": lambda: chance.randint(-1, 4),
        "bigint": lambda: chance.randint(-3, 6),
        "decimal(10,2)": lambda: Decimal(chance.randint(-4, 12)) / 4,
        "decimal(20,0)": lambda: Decimal(chance.randint(-2, 3)),
        "string": lambda: chance.choice(["", "a", "b", "B", "ä"]),
        "double": lambda: chance.choice([0.0, -0.0, 1.5, float("nan"), float("-inf")]),
        "date": lambda: dt.date(2024, 2, 26 + chance.randint(0, 3)),
    }
    valid = (FROM, TO)
    arrays = [
        pa.array(
            [makers[c.type]() if c.name in valid or chance.random() < 0.85 else None for _ in range(count)],
            arrow_type(c.type),
        )
        for c in columns
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(columns))


class _World:
    def __init__(self, spark: SparkSession, seed: int, counts: tuple[int, int]) -> None:
        self.spark = spark
        self.tables = {
            "l": (_table(LEFT, seed, counts[0]), LEFT),
            "r": (_table(RIGHT, seed + 1, counts[1]), RIGHT),
        }
        for name, (table, _) in self.tables.items():
            spark.createDataFrame(table).createOrReplaceTempView(f"given_{name}")

    def sql(self, text: str, node: Node) -> pa.Table:
        return self.spark.sql(Emitter(lambda leaf: f"given_{leaf.name}").statement(text, node)).toArrow()  # type: ignore[attr-defined]

    def rows(self, leaf: Node) -> Rows:
        assert isinstance(leaf, Given)
        table, columns = self.tables[leaf.name]
        return Rows.of(table, columns, leaf.columns)


def _shown(rows: Rows, node: Node) -> pa.Table:
    arrays = [rows[each].to_arrow(rows[each].type.simpleString()) for each in node.columns]
    return pa.Table.from_arrays(arrays, names=list(node.columns))


def _counted(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*(column.to_pylist() for column in table.columns))))


@pytest.mark.parametrize(
    "counts", [(60, 40), (1, 3), (0, 5), (30, 0)], ids=["many", "one", "none left", "none right"]
)
def test_a_node_gives_what_spark_gives(spark: SparkSession, counts: tuple[int, int]) -> None:
    world = _World(spark, 7, counts)
    for name, node in PLANS.items():
        shown = ", ".join(map(quote, node.columns))
        theirs = world.sql(f"SELECT {shown} FROM {{0}}", node)
        rows = Evaluation(world.rows, 100_000).rows(node)
        mine = _shown(rows, node)
        assert _counted(mine) == _counted(theirs), name
        with many_rows(0):  # another core does some of it
            shared = _shown(Evaluation(world.rows, 100_000).rows(node), node)
        assert repr(shared.to_pylist()) == repr(mine.to_pylist()), name
        known = [(f.name, f.type) for f in theirs.schema if not pa.types.is_null(rows[f.name].values.type)]
        assert known == [(f.name, f.type) for f in mine.schema if not pa.types.is_null(f.type)], name


@pytest.mark.parametrize("key", [("k", "s"), ("f",), (), None], ids=str)
def test_the_rows_of_a_log_are_those_of_its_sql(spark: SparkSession, key: tuple[str, ...] | None) -> None:
    world = _World(spark, 11, (80, 0))
    columns = LEFT[:-2]
    outputs = [c.name for c in columns]
    node = Edges(Project(left, tuple((c.name, parse_expression(c.name)) for c in LEFT)))
    text = f"SELECT {', '.join(outputs)}, _change_type, _commit_version, _sequence, _duplicate FROM ({{0}})"
    theirs = world.sql(text.replace("{0}", consolidate("{0}", outputs, key, [c.type for c in columns])), node)
    mine = log_rows(node, outputs, columns, key, world.rows, 100_000)
    if key is None:  # rows of one version and sign are numbered as they come
        theirs, mine = (each.drop_columns(["_sequence"]) for each in (theirs, mine))
    assert mine.num_rows > 20
    assert _counted(mine) == _counted(theirs)


def test_what_is_not_known_or_too_much_is_left_to_spark(spark: SparkSession) -> None:
    world = _World(spark, 3, (50, 50))
    with pytest.raises(UnsupportedError):
        Evaluation(world.rows, 1000).rows(Limit(left, (), (), 1))
    for function in (
        "max(m1) OVER (PARTITION BY k1 ORDER BY s1, p1 ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        "avg(p1) OVER (PARTITION BY k1)",
        "sum(m1) OVER (PARTITION BY k1 ORDER BY c1 RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)",
        "last(p1, true) OVER (PARTITION BY k1 ORDER BY s1, p1)",
        "lag(p1, 1, 0) OVER (PARTITION BY k1 ORDER BY s1, p1)",
        "sum(m1) FILTER (WHERE m1 > 0) OVER (PARTITION BY k1)",
    ):
        with pytest.raises(UnsupportedError):
            Evaluation(world.rows, 1000).rows(_window(a=function))
    with pytest.raises(TooLargeError):
        Evaluation(world.rows, 1000).rows(Join((left, right), ()))
    with many_rows(0):  # halves, each of which is not too much
        with pytest.raises(TooLargeError):
            Evaluation(world.rows, 2000).rows(Join((left, right), ()))
        with pytest.raises(TooLargeError):  # and of which few pairs remain
            Evaluation(world.rows, 2000).rows(Join((left, right), _all("n < n2", "n > n2")))
    assert Evaluation(world.rows, 2500).rows(Join((left, right), ())).count == 2500
    large = Project(left, _named(k="k", n="9223372036854775807"))
    with pytest.raises(TooLargeError):
        Evaluation(world.rows, 1000).rows(Aggregate(large, _named(k="k"), _named(total="sum(n)")))


def test_a_half_may_have_nearly_all_pairs_of_a_join() -> None:
    def column(name: str, values: list[int]) -> Rows:
        return Rows({name: Vector(t.LongType(), pa.array(values, pa.int64()))}, len(values))

    one, other = column("a", [1] * 30 + [2] * 70), column("b", [1] * 30)
    with many_rows(0):
        joined = inner_join((one, other), _all("a = b"), {"a"}, 900)
        assert joined.count == 900
        with pytest.raises(TooLargeError):
            inner_join((one, other), _all("a = b"), {"a"}, 899)


def test_the_numbers_of_many_columns_are_not_in_memory_at_once() -> None:
    count = 50_000
    columns = [Vector(t.LongType(), pa.array(np.arange(count) % 2)) for _ in range(40)]
    for rows in (0, 2 * count):
        with many_rows(rows):
            numbers(columns, count)
            tracemalloc.start()
            numbers(columns, count)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 20 * 8 * count


def test_values_at_the_ends_of_their_type_have_extremes(spark: SparkSession) -> None:
    ends = (-(2**63), 2**63 - 1, 0)
    columns = (Column("k", "int"), Column("n", "bigint"))
    table = pa.table([[1] * len(ends), ends], schema=arrow_schema(columns))
    spark.createDataFrame(table).createOrReplaceTempView("given_ends")
    given = Given("ends", ("k", "n"))
    windows = {
        f"{call}{number}": f"{call}(n) OVER (PARTITION BY k ORDER BY n {way} {ROWS_TO_HERE})"
        for number, way in enumerate(("ASC", "DESC"))
        for call in ("min", "max")
    }
    node = Window(given, _named(**windows, low="min(n) OVER (PARTITION BY k)"), ())
    emitter = Emitter(lambda leaf: f"given_{leaf.name}")  # type: ignore[attr-defined]
    theirs = spark.sql(emitter.statement(f"SELECT {', '.join(node.columns)} FROM {{0}}", node)).toArrow()
    rows = Evaluation(lambda _: Rows.of(table, columns, given.columns), 1000).rows(node)
    mine = pa.Table.from_arrays([rows[name].values for name in node.columns], names=list(node.columns))
    assert _counted(mine) == _counted(theirs)


@pytest.mark.parametrize("count", [1, 2, 103, 161, 1015])
def test_a_sum_that_has_one_more_than_64_bits_hold_is_not_safe(count: int) -> None:
    least = -(-(2**63) // count)  # with DOUBLE for the product some would be too low
    assert not is_sum_safe(np.full(count, -least))
    assert is_sum_safe(np.full(count, least - 1))


def test_an_equality_before_in_is_no_key_of_a_join() -> None:
    """Spark asks whether `f = x` is in the list, not whether f is what `x IN (…)` says."""
    left, right = (
        Rows({name: Vector(t.BooleanType(), pa.array([True, False, None]))}, 3) for name in ("f", "x")
    )
    for condition in ("f = x IN (true, false)", "f = x BETWEEN false AND true"):
        with pytest.raises(UnsupportedError, match="Spark compares first"):
            inner_join([left, right], [parse_expression(condition)], ["f", "x"], 100)
