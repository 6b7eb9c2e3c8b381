"""Orders with many ties, in all modes: the result is the one in which the rows' identity decides, at every commit.

The oracle is Python over the rows that the tables must have; neither Spark nor the plan has a part in it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.planner.compiled import Compiled
from cq_engine.runtime.definition import compile_definition, shape_of
from cq_engine.runtime.query import query_frame
from tests.oracle.law import Change, Row, replay, row_of
from tests.oracle.warehouse import forced

Rows = list[dict[str, Any]]


@dataclass
class Tables:
    """`t` has the key `id`, `e` has no key and rows that are equal in all columns."""

    t: Rows = field(default_factory=list)
    e: Rows = field(default_factory=list)


def order(row: dict[str, Any], *columns: str) -> tuple[Any, ...]:
    """Spark's: NULL first; a column with - comes last in reverse."""
    found = []
    for column in columns:
        value = row[column.lstrip("-")]
        if column.startswith("-"):
            found.append((value is None, -(value or 0)))
        else:
            found.append((value is not None, value))
    return tuple(found)


def ordered(rows: Iterable[dict[str, Any]], *columns: str) -> Rows:
    return sorted(rows, key=lambda row: order(row, *columns))


def groups(rows: Rows) -> list[tuple[Any, Rows]]:
    return [(p, [r for r in rows if r["p"] == p]) for p in {r["p"] for r in rows}]


def present(values: Iterable[Any]) -> list[Any]:
    return [v for v in values if v is not None]


def one(values: Sequence[Any], place: int = 0) -> Any:
    return values[place] if -len(values) <= place < len(values) else None


def mode(values: Iterable[Any]) -> Any:
    counts = Counter(present(values))
    return min(counts, key=lambda v: (-counts[v], v)) if counts else None


def joined(values: Iterable[Any], by: str = "") -> str | None:
    there = present(values)
    return by.join(there) if there else None


# ------------------------------------------------------------------------------------------------ with a key

GROUPED = """SELECT p, first(x) AS a, last(x, true) AS b, any_value(s) FILTER (WHERE o > 0) AS c, collect_list(x) AS d,
    collect_list(DISTINCT o) AS e, mode(x) AS f, max_by(s, o) AS g, min_by(x, o) AS h, listagg(s) AS i, listagg(DISTINCT s) AS k, collect_set(x) AS l, count(*) AS n,
    max_by(x, o, 2) AS m, first(x) FILTER (WHERE o < 2) IGNORE NULLS AS q
    FROM t GROUP BY p"""


def grouped(tables: Tables) -> list[Row]:
    return [
        (p, *_aggregates(ordered(rows, "id")), *_more(ordered(rows, "id"))) for p, rows in groups(tables.t)
    ]


def _aggregates(rows: Rows) -> Row:
    by_o = [r for r in rows if r["o"] is not None]
    return (
        rows[0]["x"],
        one(present(r["x"] for r in rows), -1),
        one([r["s"] for r in by_o if r["o"] > 0]),
        present(r["x"] for r in rows),
        sorted({r["o"] for r in by_o}),
        mode(r["x"] for r in rows),
        one([r["s"] for r in ordered(by_o, "o", "id")], -1),
        one([r["x"] for r in ordered(by_o, "o", "id")]),
        joined(r["s"] for r in rows),
        joined(sorted(set(present(r["s"] for r in rows)))),
        sorted(set(present(r["x"] for r in rows))),
        len(rows),
    )


def _more(rows: Rows) -> Row:
    by_o = [r for r in rows if r["o"] is not None]
    most = [r["x"] for r in ordered(by_o, "o", "id")][::-1][:2]
    return most or None, one(present(r["x"] for r in by_o if r["o"] < 2))


SCALAR = "SELECT first(x) AS a, collect_list(s) AS b, any_value(o) IGNORE NULLS AS c FROM t WHERE o = 1"


LISTS = "SELECT p, listagg(s, ',') WITHIN GROUP (ORDER BY o DESC) AS a, listagg(x) AS b FROM t GROUP BY p"


def lists(tables: Tables) -> list[Row]:
    found: list[Row] = []
    for p, rows in groups(tables.t):
        numbers = joined(None if r["x"] is None else str(r["x"]) for r in ordered(rows, "id"))
        found.append((p, joined((r["s"] for r in ordered(rows, "-o", "id")), ","), numbers))
    return found


def scalar(tables: Tables) -> list[Row]:
    rows = [r for r in ordered(tables.t, "id") if r["o"] == 1]
    return [(one([r["x"] for r in rows]), present(r["s"] for r in rows), one(present(r["o"] for r in rows)))]


OVER = "OVER (PARTITION BY p ORDER BY o"
WINDOWS = f"""SELECT id, row_number() {OVER}) AS a, ntile(2) {OVER}) AS b, lag(x) {OVER}) AS c,
    lead(x) IGNORE NULLS {OVER}) AS d, first_value(x) {OVER}) AS e, first_value(x) IGNORE NULLS {OVER}) AS f,
    last_value(x) {OVER}) AS g, nth_value(x, 2) {OVER}) AS h, collect_list(x) {OVER}) AS i,
    sum(x) {OVER} ROWS 1 PRECEDING) AS j, any_value(x) OVER (PARTITION BY p) AS k,
    last_value(x) {OVER} RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS l, rank() {OVER}) AS m,
    mode(s) {OVER}) AS n, max_by(s, x) {OVER}) AS q FROM t"""


def windows(tables: Tables) -> list[Row]:
    return [row for _, rows in groups(tables.t) for row in _partition(ordered(rows, "o", "id"))]


def _partition(rows: Rows) -> list[Row]:
    found = []
    for at, row in enumerate(rows):
        frame = [r for r in rows if order(r, "o") <= order(row, "o")]
        near = (
            [r for r in frame if r["o"] is not None and r["o"] >= row["o"] - 1]
            if row["o"] is not None
            else frame
        )
        larger = (len(rows) + 1) // 2
        by_x = ordered((r for r in frame if r["x"] is not None), "x", "id")
        found.append((
            row["id"], at + 1, 1 if at < larger else 2, rows[at - 1]["x"] if at else None,
            one(present(r["x"] for r in rows[at + 1 :])), frame[0]["x"], one(present(r["x"] for r in frame)),
            frame[-1]["x"], one([r["x"] for r in frame], 1), present(r["x"] for r in frame),
            _sum(r["x"] for r in rows[max(at - 1, 0) : at + 1]), ordered(rows, "id")[0]["x"],
            near[-1]["x"], 1 + sum(order(r, "o") < order(row, "o") for r in rows),
            mode(r["s"] for r in frame), one([r["s"] for r in by_x], -1),
        ))  # fmt: skip
    return found


def _sum(values: Iterable[Any]) -> int | None:
    there = present(values)
    return sum(there) if there else None


LIMIT = "SELECT id, x FROM t ORDER BY o DESC LIMIT 3 OFFSET 1"


def limit(tables: Tables) -> list[Row]:
    return [(r["id"], r["x"]) for r in ordered(tables.t, "-o", "id")[1:4]]


TOP = "SELECT p, id, x FROM t QUALIFY row_number() OVER (PARTITION BY p ORDER BY o) <= 2"


def top(tables: Tables) -> list[Row]:
    return [(p, r["id"], r["x"]) for p, rows in groups(tables.t) for r in ordered(rows, "o", "id")[:2]]


UNKEYED_LIMIT = "SELECT x, s FROM t ORDER BY o LIMIT 4"


def unkeyed_limit(tables: Tables) -> list[Row]:
    return [(r["x"], r["s"]) for r in ordered(tables.t, "o", "x", "s")[:4]]


# ------------------------------------------------------------------------------------------------ without a key

BAG_GROUPED = """SELECT p, first(x) AS a, first(s) AS b, last(o) AS c, collect_list(x) AS d, max_by(x, s) AS e,
    listagg(s, '|') AS f FROM e GROUP BY p"""


def bag_grouped(tables: Tables) -> list[Row]:
    found: list[Row] = []
    for p, group in groups(tables.e):
        rows = ordered(group, "o", "x", "s")
        by_s = ordered((r for r in rows if r["s"] is not None), "s", "o", "x")
        values = (rows[0]["x"], rows[0]["s"], rows[-1]["o"], present(r["x"] for r in rows))
        found.append((p, *values, one([r["x"] for r in by_s], -1), joined((r["s"] for r in rows), "|")))
    return found


BAG_WINDOWS = """SELECT p, o, x, row_number() OVER (PARTITION BY p ORDER BY o) AS a,
    row_number() OVER (PARTITION BY p ORDER BY x DESC) AS b, lag(s) OVER (PARTITION BY p ORDER BY o) AS c,
    sum(x) OVER (PARTITION BY p ORDER BY o) AS d FROM e"""


def bag_windows(tables: Tables) -> list[Row]:
    found: list[Row] = []
    for p, group in groups(tables.e):
        rows = [dict(r) for r in ordered(group, "o", "x", "s")]
        for at, row in enumerate(rows):
            row["a"], row["c"] = at + 1, rows[at - 1]["s"] if at else None
            row["d"] = _sum(r["x"] for r in rows if order(r, "o") <= order(row, "o"))
        for at, row in enumerate(ordered(rows, "-x", "o", "s", "a")):
            found.append((p, row["o"], row["x"], row["a"], at + 1, row["c"], row["d"]))
    return found


BAG_LIMIT = "SELECT p, x FROM e ORDER BY o DESC LIMIT 3"


def bag_limit(tables: Tables) -> list[Row]:
    return [(r["p"], r["x"]) for r in ordered(tables.e, "-o", "p", "x")[:3]]


UNION = """SELECT p, first(x) AS a, collect_list(s) AS b
    FROM (SELECT p, x, s FROM t UNION ALL SELECT p, x, s FROM e) AS u GROUP BY p"""


def union(tables: Tables) -> list[Row]:
    both = [(p, ordered(rows, "x", "s")) for p, rows in groups(tables.t + tables.e)]
    return [(p, rows[0]["x"], present(r["s"] for r in rows)) for p, rows in both]


Query = tuple[str, Callable[[Tables], list[Row]]]
QUERIES: tuple[Query, ...] = (
    (GROUPED, grouped), (LISTS, lists), (SCALAR, scalar), (WINDOWS, windows), (LIMIT, limit), (TOP, top),
    (UNKEYED_LIMIT, unkeyed_limit), (BAG_GROUPED, bag_grouped), (BAG_WINDOWS, bag_windows), (BAG_LIMIT, bag_limit),
    (UNION, union),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ histories


class History:
    """Random commits over few values; keeps in `tables` what the tables must have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tables = Tables()
        self.next_id = 1

    def row(self) -> dict[str, Any]:
        pick = self.random.choice
        return {
            "p": pick((1, 2)),
            "o": pick((None, 0, 1, 1, 2)),
            "x": pick((None, 5, 6)),
            "s": pick((None, "a", "b")),
        }

    def commit(self) -> list[str]:
        """The statements of one transaction."""
        if not self.tables.t:
            return [self.insert_t(7), self.insert_e(7)]
        chances = (
            lambda: self.insert_t(2),
            lambda: self.insert_e(2),
            self.update_t,
            self.delete_t,
            self.delete_e,
        )
        return [self.random.choice(chances)() for _ in range(self.random.randint(2, 4))]

    def insert_t(self, count: int) -> str:
        rows = []
        for _ in range(count):
            number = self.next_id if self.random.random() < 0.5 else 1000 - self.next_id
            rows.append({"id": number, **self.row()})
            self.next_id += 1
        self.tables.t += rows
        return f"INSERT INTO t VALUES {', '.join(map(_literals, rows))}"

    def insert_e(self, count: int) -> str:
        rows = [self.row() for _ in range(count)]
        rows.append(dict(rows[0]))
        self.tables.e += rows
        return f"INSERT INTO e VALUES {', '.join(map(_literals, rows))}"

    def update_t(self) -> str:
        chosen, value = self.random.choice(self.tables.t), self.row()["o"]
        chosen["o"] = value
        return f"UPDATE t SET o = {_literal(value)} WHERE id = {chosen['id']}"

    def delete_t(self) -> str:
        chosen = self.random.choice(self.tables.t)
        if len(self.tables.t) > 1:
            self.tables.t.remove(chosen)
            return f"DELETE FROM t WHERE id = {chosen['id']}"
        return self.insert_t(1)

    def delete_e(self) -> str:
        p, x = self.random.choice((1, 2)), self.random.choice((5, 6))
        self.tables.e = [r for r in self.tables.e if not (r["p"] == p and r["x"] == x)]
        return f"DELETE FROM e WHERE p = {p} AND x = {x}"


def _literal(value: Any) -> str:
    return "NULL" if value is None else repr(value)


def _literals(row: dict[str, Any]) -> str:
    return f"({', '.join(map(_literal, row.values()))})"


# ------------------------------------------------------------------------------------------------ tests

COMMITS = 4


@pytest.mark.parametrize(("seed", "queries"), [(1, QUERIES[::2]), (2, QUERIES[1::2])], ids=["small", "bulk"])
def test_ties_are_broken_by_the_identity_in_every_mode(
    spark: SparkSession, warehouse: Path, seed: int, queries: Sequence[Query]
) -> None:
    history = History(seed)
    results: list[list[list[Row]]] = [[] for _ in queries]
    versions: list[int] = []
    with (
        cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine,
        forced(bulk=seed % 2 == 0, large=False),
    ):
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, p INT, o INT, x INT, s STRING)")
        engine.execute("CREATE TABLE e (p INT, o INT, x INT, s STRING)")
        for at in range(COMMITS):
            _commit(engine, history.commit(), versions)
            for number, (_, expected) in enumerate(queries):
                results[number].append([row_of(r) for r in expected(history.tables)])
            if at == 0:
                _create(engine, queries)
                continue
            for number in range(len(queries)):
                engine.refresh(f"each{number}")
                if at % 2:
                    engine.refresh(f"packed{number}")
        for number in range(len(queries)):
            engine.refresh(f"batch{number}")
            _check(engine, f"each{number}", versions, results[number])
            _check(engine, f"batch{number}", versions, results[number])
            packed = [at for at in range(COMMITS) if at == 0 or at % 2]
            _check(
                engine,
                f"packed{number}",
                [versions[at] for at in packed],
                [results[number][at] for at in packed],
            )


def _commit(engine: cq_engine.Engine, statements: Sequence[str], versions: list[int]) -> None:
    with engine.transaction() as transaction:
        for statement in statements:
            transaction.execute(statement)
    versions.append(transaction.commit_version or versions[-1])


def _create(engine: cq_engine.Engine, queries: Sequence[Query]) -> None:
    for number, (query, _) in enumerate(queries):
        for name, mode in (("each", "TRANSACTIONAL"), ("batch", "TRANSACTIONAL"), ("packed", "COMPRESSED")):
            start = "START FROM SNAPSHOT" if name == "batch" else ""
            made = f"CREATE CONTINUOUS QUERY {name}{number} COMPUTE {mode} DELTA ON DEMAND {start} AS {query}"
            message = engine.execute(made).message or ""
            assert "FULL" not in message, message


def _check(
    engine: cq_engine.Engine, name: str, versions: Sequence[int], results: Sequence[list[Row]]
) -> None:
    """The snapshot (of `batch`) and all deltas of the query lead to the results."""
    described = engine.describe(name)
    places = None if described.key is None else [described.columns.index(k) for k in described.key]
    changes = [
        Change(
            d.commit_version,
            d.sequence,
            d.marker,
            *(None if r is None else row_of(r) for r in (d.key, d.new, d.old)),
        )
        for d in engine.deltas(name)
    ]
    snapshot = [c.new for c in changes if c.version <= versions[0]]
    if name.startswith("batch"):
        assert sorted(map(str, snapshot)) == sorted(map(str, results[0]))
    by_version = dict(zip(versions[1:], results[1:]))
    later = [c for c in changes if c.version > versions[0]]
    replay(results[0], places, later, sorted(by_version.items()))


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT PRIMARY KEY, p INT, o INT, x INT, s STRING)")
        opened.execute("CREATE TABLE e (p INT, o INT, x INT, s STRING)")
        yield opened


def _compiled(engine: cq_engine.Engine, query: str) -> Compiled:
    services = engine.services
    return compile_definition(services, shape_of(services, services.catalog.state, query), None)


@pytest.mark.parametrize("query", [query for query, _ in QUERIES])
def test_types_stay(engine: cq_engine.Engine, query: str) -> None:
    """The plan's text, by Spark's analysis, has the types of the user's query."""
    services = engine.services
    compiled = _compiled(engine, query)
    assert compiled.text != query
    told, meant = (query_frame(services, text).schema for text in (query, compiled.text))
    assert [(f.name, f.dataType.simpleString()) for f in meant] == [
        (f.name, f.dataType.simpleString()) for f in told
    ]


def test_full_breaks_ties_alike(engine: cq_engine.Engine) -> None:
    engine.execute("INSERT INTO t VALUES (9, 1, 1, 5, 'a'), (8, 1, 1, 6, 'b')")
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT WITH (refresh = 'full')"
        " AS SELECT p, first(x) AS a, collect_list(s) AS b FROM t GROUP BY p"
    )
    engine.execute("INSERT INTO t VALUES (7, 1, 1, 7, 'c')")
    engine.refresh("q")
    assert engine.describe("q").verdict == "FULL"
    assert [(d.marker, d.new, d.old) for d in engine.deltas("q")] == [
        ("I", (1, 6, ["b", "a"]), None),
        ("U", (1, 7, ["c", "b", "a"]), (1, 6, ["b", "a"])),
    ]


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("SELECT p, approx_percentile(x, 0.5) AS a FROM t GROUP BY p", "percentile_approx: approximate"),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3)"  # noqa: ISC004
            " SELECT n, x FROM r JOIN t ON id = n ORDER BY x LIMIT 2",
            "limit: of rows that are equal in the order",
        ),
        ("SELECT p, first(x) AS a FROM t GROUP BY p", ""),
    ],
)
def test_create_says_what_cannot_be_made_certain(engine: cq_engine.Engine, query: str, note: str) -> None:
    message = engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {query}").message or ""
    assert (note in message.lower()) if note else ("any may be taken" not in message)


def test_maps_variants_and_collations_tell_rows_apart(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE TABLE w (p INT, m MAP<STRING, INT>, v VARIANT, c STRING COLLATE UTF8_LCASE)")
    query = "SELECT p, first(m) AS a, collect_list(c) AS b, collect_list(m) AS d FROM w GROUP BY p"
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {query}")
    assert "any may be taken" not in " ".join(engine.describe("q").reasons)
    engine.execute(
        "INSERT INTO w VALUES (1, map('b', 1), parse_json('1'), 'x'), (1, map('a', 2), parse_json('2'), 'Y'),"
        " (1, map('a', 2), parse_json('1'), 'y'), (1, map('a', 2), parse_json('1'), 'Y')"
    )
    engine.refresh("q")
    (delta,) = engine.deltas("q")
    a = [("a", 2)]
    assert delta.new is not None
    assert [dict(delta.new[1]), delta.new[2], [dict(m) for m in delta.new[3]]] == [
        dict(a), ["Y", "y", "Y", "x"], [dict(a), dict(a), dict(a), {"b": 1}],
    ]  # fmt: skip
