"""What Spark SQL means is the same after our dialect has read and written it: Spark's own examples, and `operators.sql`."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from pyspark.sql import SparkSession
from sqlglot import exp

from cq_engine.algebra.dialect import parse_expression, write
from cq_engine.algebra.functions import is_aggregate, nondeterministic_call, only_where

_EXAMPLE = re.compile(r"^\s+> (SELECT\b.*?);$", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_REFUSED = {
    "from_avro": "needs the Avro module",
    "to_avro": "needs the Avro module",
    "schema_of_avro": "needs the Avro module",
    "from_protobuf": "needs a descriptor file",
    "ilike": "its pattern is for another setting of escapes",
    "like": "its pattern is for another setting of escapes",
    "regexp": "its pattern is for another setting of escapes",
    "regexp_like": "its pattern is for another setting of escapes",
    "rlike": "its pattern is for another setting of escapes",
    "try_add": "PySpark cannot fetch a year-month interval",
    "try_avg": "PySpark cannot fetch a year-month interval",
    "try_divide": "PySpark cannot fetch a year-month interval",
    "try_multiply": "PySpark cannot fetch a year-month interval",
    "try_subtract": "PySpark cannot fetch a year-month interval",
}
"""Functions of whose examples Spark refuses some here."""
_AGGREGATES_NOT = ("aggregate", "reduce")


@pytest.fixture(scope="module")
def described(spark: SparkSession) -> dict[str, tuple[str, str]]:
    """The class of each of Spark's functions, and its examples."""
    catalog: Any = spark._jsparkSession.sessionState().catalog()
    found = {}
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        known = catalog.lookupBuiltinOrTempFunction(name)
        if not known.isDefined():
            known = catalog.lookupBuiltinOrTempTableFunction(name)
        found[name] = (str(known.get().getClassName()), known.get().getExtended().replace("_FUNC_", name))
    return found


def words(text: str) -> list[tuple[str, str]]:
    return [(t.token_type.name, t.text.lower()) for t in sqlglot.tokenize(text, dialect="spark")]


def same_text(text: str, written: str) -> bool:
    """Is it the same text, but for spaces, comments and the case of letters outside of strings?"""
    strings = [re.findall(r"'[^']*'", each) for each in (text, written)]
    plain = not re.search(r"[\\\"]|''", text)
    return plain and strings[0] == strings[1] and words(text) == words(written)


def result(spark: SparkSession, text: str) -> str:
    try:
        rows = spark.sql(text)
        types = [field.dataType.simpleString() for field in rows.schema]
        return f"{types} {[tuple(row) for row in rows.collect()]}"
    except Exception as error:  # noqa: BLE001 - what Spark refuses is compared, too
        return f"refused: {error}"


def compared(spark: SparkSession, text: str) -> str | None:
    """What is wrong with the text that is written for `text`; "refused" where Spark takes not even `text`."""
    tree = parse_expression(text)
    written = write(tree)
    if same_text(text, written) or nondeterministic_call(tree) is not None:
        return None
    wanted = result(spark, text)
    if wanted.startswith("refused"):
        return "refused"
    got = result(spark, written)
    return None if got == wanted else f"{text}\n{written}\n{wanted[:300]}\n{got[:300]}"


@pytest.mark.parametrize(
    ("most", "each", "least"), [(1, 2, 220), pytest.param(100, 1, 1300, marks=pytest.mark.long)]
)
def test_examples(
    once: SparkSession, described: dict[str, tuple[str, str]], most: int, each: int, least: int
) -> None:
    """The first example of each second function, and all examples in the long runs."""
    chosen = list(described.items())[::each]
    examples = [(n, m[1]) for n, (_, text) in chosen for m in islice(_EXAMPLE.finditer(text), most)]
    assert len(examples) > least
    found = [(name, compared(once, text)) for name, text in examples]
    assert {name for name, wrong in found if wrong == "refused"} <= set(_REFUSED)
    assert [wrong for _, wrong in found if wrong not in (None, "refused")] == []


OPERATORS = (Path(__file__).parent / "operators.sql").read_text(encoding="utf-8").split(";\n")


def test_operators(once: SparkSession) -> None:
    found = [compared(once, text) for text in OPERATORS if text.strip()]
    assert [wrong for wrong in found if wrong is not None] == []


def test_aggregates_are_known(described: dict[str, tuple[str, str]]) -> None:
    wanted = {n for n, (kind, _) in described.items() if ".aggregate." in kind or "Agg" in kind}
    wanted -= {*_AGGREGATES_NOT}
    assert len(wanted) > 80
    assert {n for n in wanted if not is_aggregate(parse_expression(f"SELECT {n}(x, y)").selects[0])} == set()
    assert {n for n in wanted if not is_aggregate(parse_expression(f"SELECT {n}(x)").selects[0])} == set()


ONLY = [
    ("first(x) IGNORE NULLS", "FIRST(x) FILTER(WHERE c) IGNORE NULLS"),
    ("first(x, true)", "FIRST(x) FILTER(WHERE c) IGNORE NULLS"),
    ("last(x) FILTER (WHERE a) IGNORE NULLS", "LAST(x) FILTER(WHERE a AND c) IGNORE NULLS"),
    ("collect_list(x) RESPECT NULLS", "COLLECT_LIST(x) FILTER(WHERE c) RESPECT NULLS"),
    ("mode() WITHIN GROUP (ORDER BY x)", "MODE() WITHIN GROUP (ORDER BY x) FILTER(WHERE c)"),
    (
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY x DESC) FILTER (WHERE a)",
        "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x DESC) FILTER(WHERE a AND c)",
    ),
    (
        "listagg(DISTINCT x) WITHIN GROUP (ORDER BY x)",
        "LISTAGG(DISTINCT x) WITHIN GROUP (ORDER BY x) FILTER(WHERE c)",
    ),
]


@pytest.mark.parametrize(("call", "wanted"), ONLY)
def test_only_where(once: SparkSession, call: str, wanted: str) -> None:
    made = write(only_where(parse_expression(f"SELECT {call}").selects[0], exp.column("c")))
    assert made == wanted
    rows = "VALUES ('x', true, true), (NULL, true, true), ('y', true, false) AS t(x, a, c)"
    if not re.search("PERCENTILE|DISTINCT", made):  # no numbers here; Spark fails on DISTINCT beside FILTER
        assert not result(once, f"SELECT {made} FROM {rows}").startswith("refused")


@pytest.mark.parametrize("signs", [("=", "<"), ("<", "="), ("<>", ">=")], ids=" ".join)
def test_comparisons_have_one_precedence_as_in_spark(signs: tuple[str, str]) -> None:
    """Spark: `a = b < c` compares whether a is b with c."""
    first, second = signs
    read = parse_expression(f"a {first} b {second} c")
    assert (write(read.args["this"]), write(read.args["expression"])) == (f"a {first} b", "c")
