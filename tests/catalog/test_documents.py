"""Definitions survive being stored."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from cq_engine.catalog.documents import from_text, to_text
from cq_engine.catalog.model import (
    Capture,
    ContinuousQuery,
    DataFile,
    DeclaredDestination,
    DeclaredSource,
    ForeignKey,
    OutputColumn,
    QueryGroup,
    SqlFunction,
    Table,
    VersionedTable,
)
from cq_engine.core.columns import Column
from cq_engine.core.errors import CatalogError
from cq_engine.grammar.clauses import (
    CapturedColumn,
    CaptureMethod,
    Cron,
    DestinationRef,
    EveryInterval,
    OnCommit,
    OnDemand,
    OnDml,
    RemoteRelation,
    Script,
    StartWithPeriod,
    When,
)

STORED = VersionedTable(
    7,
    "base",
    "Größe",
    (Column("a b", "decimal(10,2)", False, "in €"), Column("m", "map<string,int>")),
    ("a b",),
    ("m",),
)
TABLE = Table(
    "Größe",
    STORED,
    ("a b",),
    False,
    (ForeignKey("fk", ("a b",), "other", ("k",), True, True),),
    (("retention", "7 days"),),
    42,
    "some_query",
    RemoteRelation("Shop", "public.orders", True, (("install", "true"),)),
    "q",
)
QUERY = ContinuousQuery(
    name="Q",
    id=3,
    statement='CREATE CONTINUOUS QUERY Q AS SELECT "x"',
    query='SELECT\n"x"',
    result=replace(STORED, kind="delta", part=3),
    key=(),
    mode="COMPRESSED",
    markers=("I", "U"),
    destinations=(DestinationRef("d", "TABLE"), DestinationRef("e")),
    options=(("o", "1"),),
    sources=("t", "u"),
    states=(("block 0", replace(STORED, kind="state")),),
    session=(("spark.sql.session.timeZone", "UTC"),),
    verdict="FULL",
    reasons=("because",),
    created_version=9,
    defined_version=8,
    outputs=(OutputColumn("o", "int", "old", 1),),
    width=2,
    source_columns=(("t", ("a", "b")), ("u", ())),
    declared=True,
    key_checked=True,
    functions=("f", "g"),
    relation=replace(TABLE, storage=replace(STORED, kind="result"), foreign_keys=()),
    group="query group 5",
    constants=("7", "it's"),
    consistency="STRONG",
    remote=("r", "s"),
    analysed=(("question", "answer"),),
)
GROUP = QueryGroup(replace(QUERY, name="query group 5"), QUERY, TABLE, (0, 2), 11)
FUNCTION = SqlFunction("F", "(a INT) RETURN g(a) + rand()", deterministic=False, uses=("g",))
DESTINATION = DeclaredDestination(
    "Sink",
    "TABLE",
    (("mode", "merge"), ("url", "${URL}")),
    True,
    Script("DELETE FROM t;", "a > 1", True, 3, 4),
    "0f1e2d3c4b5a6978",
)
SOURCE = DeclaredSource("Shop", "postgresql", (("url", "${SHOP_URL}"),))
CAPTURE = Capture(
    name="Orders_in",
    source="Shop",
    table="Größe",
    method=CaptureMethod("TIMESTAMP", "ts", "gone", "select 1", True, (("overlap", "5 MINUTES"),)),
    when=EveryInterval(10, "SECOND"),
    relation="public.orders",
    columns=(CapturedColumn("id", "a b"), CapturedColumn("m", "m")),
    where="region = 'EU'",
    options=(("initial", "none"),),
    tables=("r", "s"),
)
FILES = (DataFile("tables/t/a.parquet", 3, 99, {"k": (1, 3), "d": ("2020-01-01", "2020-12-31")}),)
SCHEDULES: tuple[When, ...] = (
    OnCommit(),
    EveryInterval(5, "MINUTE"),
    StartWithPeriod("2020-01-01 00:00:00", 1, "DAY"),
    Cron("0 * * * *"),
    OnDml(("INSERT", "DELETE"), ("t", "u")),
    OnDemand(),
)


def differs_from_default(record: Any) -> list[str]:
    """The fields that a lost one would not be noticed in."""
    return [f.name for f in fields(record) if getattr(record, f.name) == f.default]


@pytest.mark.parametrize("table", [TABLE, Table("t", replace(STORED, identity=("_row_id",)))])
def test_tables(table: Table) -> None:
    assert from_text(Table, to_text(table)) == table


@pytest.mark.parametrize("when", SCHEDULES)
def test_queries(when: When) -> None:
    query = replace(QUERY, when=when)
    assert from_text(ContinuousQuery, to_text(query)) == query


def test_what_groups_were_called_first_is_still_read() -> None:
    found = json.loads(to_text(QUERY))
    assert found["template"] == QUERY.group
    found["options"] = [["template", "off"]]
    assert from_text(ContinuousQuery, json.dumps(found)).options == (("query_group", "off"),)


def test_query_groups() -> None:
    assert from_text(QueryGroup, to_text(GROUP)) == GROUP


def test_a_multiset_has_no_key() -> None:
    query = replace(QUERY, key=None)
    assert from_text(ContinuousQuery, to_text(query)).key is None


def test_the_examples_leave_no_field_at_its_default() -> None:
    assert differs_from_default(TABLE) == []
    assert differs_from_default(QUERY) == ["when"]
    assert differs_from_default(QUERY.result) == []
    assert differs_from_default(GROUP) == []
    assert {type(when) for when in SCHEDULES} == set(get_args(When))


def test_files() -> None:
    assert from_text(tuple[DataFile, ...], to_text(FILES)) == FILES


def test_destinations() -> None:
    assert from_text(DeclaredDestination, to_text(DESTINATION)) == DESTINATION
    assert differs_from_default(DESTINATION) == []


def test_sources() -> None:
    assert from_text(DeclaredSource, to_text(SOURCE)) == SOURCE
    assert differs_from_default(SOURCE) == []


@pytest.mark.parametrize("when", SCHEDULES)
def test_captures(when: When) -> None:
    capture = replace(CAPTURE, when=when)
    assert from_text(Capture, to_text(capture)) == capture
    assert differs_from_default(CAPTURE) == differs_from_default(CAPTURE.method) == []
    plain = replace(capture, relation=None, where=None, method=CaptureMethod("LOG"))
    assert from_text(Capture, to_text(plain)) == plain


def test_functions() -> None:
    assert from_text(SqlFunction, to_text(FUNCTION)) == FUNCTION


def test_documents_are_as_they_have_always_been() -> None:
    """An attribute that is renamed, or gets another type, must not change what is stored."""
    stored = json.loads(Path(__file__).with_name("documents.json").read_text(encoding="utf-8"))
    assert json.loads(to_text(GROUP)) == stored["group"]
    assert json.loads(to_text(FUNCTION)) == stored["function"]
    assert json.loads(to_text(FILES)) == stored["files"]
    assert json.loads(to_text(DESTINATION)) == stored["destination"]
    assert json.loads(to_text(SOURCE)) == stored["source"]
    assert json.loads(to_text(CAPTURE)) == stored["capture"]
    assert [json.loads(to_text(when)) for when in SCHEDULES] == stored["schedules"]


def test_what_old_documents_lack() -> None:
    found = json.loads(to_text(QUERY))
    for name in (
        "template",
        "constants",
        "outputs",
        "width",
        "defined_version",
        "consistency",
        "remote",
        "analysed",
    ):
        del found[name]
    for key in (keys := json.loads(to_text(TABLE))["foreign_keys"]):
        del key["since"]
    assert from_text(ContinuousQuery, json.dumps(found)) == replace(
        QUERY,
        group=None,
        constants=(),
        outputs=(),
        width=0,
        defined_version=0,
        consistency=None,
        remote=(),
        analysed=(),
    )
    assert from_text(ForeignKey, json.dumps(keys[0])).since == 2**63 - 1


def test_an_unknown_schedule_is_said_so() -> None:
    text = to_text(QUERY).replace('"kind":"commit"', '"kind":"full moon"')
    with pytest.raises(CatalogError, match="full moon"):
        from_text(ContinuousQuery, text)
