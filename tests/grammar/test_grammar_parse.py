"""Continuous queries and their clauses, from text to record."""

from __future__ import annotations

import time

import pytest

from cq_engine.grammar import clauses as cl
from cq_engine.grammar import parse
from cq_engine.grammar import statements as st
from tests.grammar.records import HEAD, only_plain_text

SLIDE_13 = """-- Inform if balance goes below 0
CREATE CONTINUOUS QUERY negative_balance_cq
  PRIMARY KEY (acct)
  COMPUTE TRANSACTIONAL
  INSERT DELETE DELTA
  ON COMMIT
  DESTINATION dest_table
AS
  SELECT acct, sum(amt) bal, delta_marker()
  FROM transaction
  GROUP BY acct
  HAVING sum(amt) < 0
"""
SLIDE_14 = """CREATE CONTINUOUS QUERY negative_balance_cq
  PRIMARY KEY (acct)
  COMPUTE COMPRESSED DELTA EVERY INTERVAL '7' DAYS
  SELECT acct, sum(amt) bal, delta_marker() mark
  FROM transaction_tbl
  GROUP BY acct
  HAVING sum(amt) < 0
"""
SLIDE_15 = SLIDE_14.replace("COMPRESSED", "TRANSACTIONAL")
SLIDE_21 = """CREATE CONTINUOUS QUERY mary_shoes
  DESTINATION dest
  COMPUTE ON COMMIT
  SELECT item, o.oid, date
  FROM orderline ol, orders o
  WHERE ol.oid=o.oid AND customer = 'Mary' AND item=shoes
"""


def test_slide_13():
    assert parse(SLIDE_13) == st.CreateContinuousQuery(
        name="negative_balance_cq",
        query=SLIDE_13[SLIDE_13.index("SELECT") :].strip(),
        primary_key=("acct",),
        mode="TRANSACTIONAL",
        markers=("I", "D"),
        when=cl.OnCommit(),
        destinations=(cl.DestinationRef("dest_table"),),
    )


@pytest.mark.parametrize(("text", "mode"), [(SLIDE_14, "COMPRESSED"), (SLIDE_15, "TRANSACTIONAL")])
def test_slides_14_and_15(text, mode):
    statement = parse(text)
    assert isinstance(statement, st.CreateContinuousQuery)
    assert statement.mode == mode
    assert statement.when == cl.EveryInterval(7, "DAY")
    assert statement.markers == ("I", "D", "U")
    assert statement.query == text[text.index("SELECT") :].strip()


def test_slide_21():
    statement = parse(SLIDE_21)
    assert isinstance(statement, st.CreateContinuousQuery)
    assert statement.destinations == (cl.DestinationRef("dest"),)
    assert statement.when == cl.OnCommit()
    assert statement.query.endswith("item=shoes")


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("COMPUTE ON COMMIT", {"when": cl.OnCommit()}),
        ("COMPUTE EVERY 5 SECONDS", {"when": cl.EveryInterval(5, "SECOND")}),
        ("compute every interval 1 month", {"when": cl.EveryInterval(1, "MONTH")}),
        (
            "COMPUTE START '01-01-2007' WITH PERIOD 1 DAY",
            {"when": cl.StartWithPeriod("01-01-2007", 1, "DAY")},
        ),
        ("COMPUTE CRON '0 6 * * mon'", {"when": cl.Cron("0 6 * * mon")}),
        ("COMPUTE ON INSERT OR UPDATE TO t", {"when": cl.OnDml(("INSERT", "UPDATE"), ("t",))}),
        ("COMPUTE ON UPDATE OR DELETE TO t, `a b`", {"when": cl.OnDml(("DELETE", "UPDATE"), ("t", "a b"))}),
        ("COMPUTE ON DEMAND", {"when": cl.OnDemand()}),
        (
            "COMPUTE TRANSACTIONAL DESTINATION d ON DEMAND",
            {"destinations": (cl.DestinationRef("d"),), "when": cl.OnDemand()},
        ),
        ("COMPUTE COMPRESSED START FROM NOW", {"mode": "COMPRESSED"}),
        ("COMPUTE COMPRESSED UPDATE DELTA", {"mode": "COMPRESSED", "markers": ("U",)}),
        ("COMPUTE UPDATE INSERT DELTA", {"markers": ("I", "U")}),
        ("PRIMARY KEY ()", {"primary_key": ()}),
        ("PRIMARY KEY (a, `b``c`)", {"primary_key": ("a", "b`c")}),
        ("START FROM NOW", {"start": cl.StartFrom()}),
        ("START FROM SNAPSHOT", {"start": cl.StartFrom("SNAPSHOT")}),
        ("START FROM VERSION 12", {"start": cl.StartFrom("VERSION", 12)}),
        (
            "DESTINATION TABLE a, CALLBACK b, queue c, TRIGGER d, WEBHOOK e, f",
            {
                "destinations": (
                    cl.DestinationRef("a", "TABLE"),
                    cl.DestinationRef("b", "CALLBACK"),
                    cl.DestinationRef("c", "QUEUE"),
                    cl.DestinationRef("d", "TRIGGER"),
                    cl.DestinationRef("e", "WEBHOOK"),
                    cl.DestinationRef("f"),
                )
            },
        ),
        (
            "WITH (Retention = 7 DAYS, 'x.y' = 'it''s', z -1.5, on_error = stop, b = TRUE, i = INTERVAL '7' DAYS, p 'q')",
            {
                "options": (
                    ("retention", "7 DAYS"),
                    ("x.y", "it's"),
                    ("z", "-1.5"),
                    ("on_error", "stop"),
                    ("b", "true"),
                    ("i", "7 DAYS"),
                    ("p", "q"),
                )
            },
        ),
    ],
)
@pytest.mark.parametrize(
    "query", ["AS SELECT 1 a", "SELECT 1 a", "WITH x AS (SELECT 1) SELECT * FROM x", "AS (SELECT 1)"]
)
def test_clauses(clause, expected, query):
    text = query.removeprefix("AS ")
    statement = parse(f"{HEAD}{clause} {query}")
    assert statement == st.CreateContinuousQuery("q", text, **expected)
    assert only_plain_text(statement)


@pytest.mark.parametrize(
    "query",
    [
        "VALUES (1), (2)",
        "FROM t SELECT a",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "with `a b` (c) as (select 1) select c from `a b`",
        "WITH/* ( */x AS (SELECT 1) SELECT * FROM x",
        "SELECT 'a;b' /* c; */ -- ;\n, `;` FROM t",
        "SELECT 1 AS `select`, \"--\" FROM t WHERE a = '/*'",
    ],
)
def test_the_defining_query_is_untouched_and_placed(query):
    for text in (f"{HEAD}AS\n{query}", f"{HEAD}WITH (a = 1) /* why */ {query} ; -- end", f"{HEAD}{query}"):
        statement = parse(text)
        assert isinstance(statement, st.CreateContinuousQuery)
        assert statement.query == query
        assert text[statement.query_offset :].startswith(query)


def test_clauses_stand_in_any_order():
    clauses = [
        "PRIMARY KEY (a)",
        "COMPUTE DELTA EVERY 2 WEEKS",
        "DESTINATION d",
        "START FROM VERSION 3",
        "WITH (x = 1)",
    ]
    expected = parse(HEAD + " ".join(clauses) + " AS SELECT a FROM t")
    for turn in range(len(clauses)):
        turned = clauses[turn:] + clauses[:turn]
        assert parse(HEAD + "\n".join(turned) + " SELECT a FROM t") == expected
        assert parse(HEAD + "\n".join(reversed(turned)) + " SELECT a FROM t") == expected


def test_parsing_takes_about_a_millisecond():
    parse(SLIDE_13)
    started = time.perf_counter()
    for _ in range(20):
        parse(SLIDE_13)
    assert (time.perf_counter() - started) / 20 < 0.02  # measured: 0.001; the rest is for busy machines
