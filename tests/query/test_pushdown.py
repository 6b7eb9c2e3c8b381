"""The columns that a query is said to need are all that it needs: with NULL in the others it gives the same rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq_engine.catalog.model import Table
from cq_engine.query.pushdown import wanted_of
from cq_engine.query.references import find_references
from tests.oracle.budget import budget
from tests.oracle.generate import History, core_histories, nested_histories
from tests.oracle.law import difference, row_of

TABLE = cast("Table", SimpleNamespace(columns=[SimpleNamespace(name=n) for n in ("id", "K", "v", "w")]))


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT v FROM t WHERE k > 1", {"k", "v"}),
        ("SELECT count(*) FROM t", set()),
        ("SELECT `V` FROM t UNION ALL SELECT 1", {"v"}),
        ("SELECT v FROM t JOIN u USING (id)", {"id", "v"}),
        ("SELECT v FROM t ORDER BY w", {"v", "w"}),
        ("SELECT max(v) OVER (PARTITION BY k ORDER BY id) FROM t", {"id", "k", "v"}),
        ("SELECT x FROM t UNPIVOT (x FOR n IN (k, v))", {"k", "v"}),
        ("SELECT a.v FROM t a WHERE EXISTS (SELECT 1 FROM u WHERE u.id = a.id)", {"id", "v"}),
        ("SELECT t.* FROM t", None),
        ("SELECT count(t.*) FROM t", None),
        ("SELECT v FROM (SELECT * FROM t)", None),
        ("SELECT v FROM t NATURAL JOIN u", None),
        ("SELECT one FROM t PIVOT (sum(v) FOR k IN (1 AS one))", None),
        ("SELECT one FROM (SELECT v, k, w FROM t) PIVOT (sum(v) FOR k IN (1 AS one))", None),
        ("SELECT count(DISTINCT v), count(*) FROM t", {"v"}),
        ("SELECT s.c FROM (SELECT v FROM t) AS s (c)", {"v"}),
        ("WITH s (c) AS (SELECT v FROM t) SELECT c FROM s", {"v"}),
        ("SELECT x FROM t LATERAL VIEW explode(array(v)) e AS x", {"v"}),
        ("SELECT x FROM t AS a (x, y, z, q)", None),
        ("SELECT x FROM t VERSION AS OF 3 AS a (x, y, z, q)", None),
        ("SELECT x FROM (t) AS a (x, y, z, q)", None),
        ("SELECT x FROM (t CROSS JOIN u) AS a (x, y, z, q, r)", None),
        ("SELECT 1 FROM u JOIN t AS a (x, y, z, q) ON u.i = a.y", None),
        ("SELECT i FROM t UNPIVOT (x FOR n IN (k, v)) AS a (i, j, x)", None),
        ("SELECT IDENTIFIER('v') FROM t", None),
        ("SELECT id FROM t WHERE identifier ('k' || '') > 1", None),
        ("SELECT count(* EXCEPT (id)) FROM t", None),
        ("SELECT count(id, *) FROM t", None),
        ("SELECT count(*, id) FROM t", None),
        ("FROM t |> WHERE k > 1 |> SELECT v", None),
    ],
)
def test_columns(query: str, columns: set[str] | None) -> None:
    found = [wanted_of(query, each, TABLE).columns for each in find_references(query) if each.name == "t"]
    assert found == [columns]


@pytest.mark.parametrize("name", ["current_user", "session_user", "current_date", "current_timestamp"])
def test_a_column_may_have_the_name_of_a_function(name: str) -> None:
    table = cast("Table", SimpleNamespace(columns=[SimpleNamespace(name=name), SimpleNamespace(name="id")]))
    query = f"SELECT {name} FROM t"
    assert wanted_of(query, find_references(query)[0], table).columns == {name}


@pytest.mark.parametrize(
    ("query", "conditions"),
    [
        ("SELECT x.id FROM t x JOIN t y USING (id) WHERE x.v = 'a'", [["v"], []]),
        ("SELECT x.id FROM t x LEFT SEMI JOIN t x USING (id) WHERE x.v = 'a'", [["v"], []]),
        ("SELECT x.id FROM t x LEFT ANTI JOIN t x USING (id) WHERE x.v = 'a'", [["v"], []]),
        ("SELECT x.id FROM t x ANTI JOIN t x USING (id) WHERE x.v = 'a'", [["v"], []]),
        ("SELECT id FROM t VERSION AS OF 3 LEFT ANTI JOIN t USING (id) WHERE t.v = 'a'", [[], []]),
    ],
)
def test_conditions_belong_to_what_the_where_sees(query: str, conditions: list[list[str]]) -> None:
    found = [wanted_of(query, each, TABLE).conditions for each in find_references(query)]
    assert [[each.column for each in own] for own in found] == conditions


def test_renamed_columns_have_no_conditions() -> None:
    query = "SELECT id FROM t AS a (k, id, v, w) WHERE k > 1"
    assert wanted_of(query, find_references(query)[0], TABLE) == (None, ())


HISTORIES = st.one_of(
    core_histories(queries=3, transactions=(1, 1)), nested_histories(queries=3, transactions=(1, 1))
)


def test_the_others_make_no_difference() -> None:
    forgotten = 0

    @budget("CQ_ORACLE_PLAN_EXAMPLES", 60)
    @given(history=HISTORIES)
    def check(history: History) -> None:
        nonlocal forgotten
        base = duckdb.connect()
        for table in history.tables:
            base.execute(table.ddl(False))
        for statement in history.initial:
            base.execute(statement)
        for query in history.queries:
            wanted = base.execute(query).fetchall()
            base.execute("BEGIN")
            for table in history.tables:
                forgotten += _forget(base, table.name, [name for name, _ in table.columns], query)
            got = base.execute(query).fetchall()
            base.execute("ROLLBACK")
            assert not difference(map(row_of, got), map(row_of, wanted)), query
        base.close()

    check()
    assert forgotten > 10


def _forget(base: Any, table: str, columns: list[str], query: str) -> int:
    """NULL in the columns of a table that the query is said not to need; how many these are."""
    made = cast("Table", SimpleNamespace(columns=[SimpleNamespace(name=name) for name in columns]))
    for each in find_references(query):
        if each.name == table:
            found = wanted_of(query, each, made).columns
            others = [] if found is None else [name for name in columns if name.lower() not in found]
            for name in others:
                base.execute(f"UPDATE {table} SET {name} = NULL")
            return len(others)
    return 0
