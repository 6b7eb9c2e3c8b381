"""Which queries read which."""

from __future__ import annotations

from cq_engine.catalog.apply import add_query, create_table, dependents, drop_query
from cq_engine.catalog.graph import ancestors, origins, readers, upstreams
from cq_engine.catalog.model import CatalogState, ContinuousQuery, VersionedTable
from cq_engine.core.columns import Column
from cq_engine.grammar.clauses import ColumnSpec, DestinationRef
from cq_engine.grammar.statements import CreateTable


def query(name: str, *sources: str, into: str | None = None) -> ContinuousQuery:
    log = VersionedTable(1, "delta", name, (Column("a", "int"),), ("_sequence",))
    destinations = (DestinationRef(into, "TABLE"),) if into else ()
    return ContinuousQuery(
        name,
        1,
        "",
        "",
        log,
        None,
        "TRANSACTIONAL",
        ("I", "D", "U"),
        destinations=destinations,
        sources=sources,
    )


QUERIES = (
    query("A", "t"),
    query("B", "a", "u"),
    query("C", "t", into="log"),
    query("D", "b", "c"),
    query("E", "log"),
)
STATE = CatalogState(queries={q.name.lower(): q for q in QUERIES})


def names(found: list[ContinuousQuery]) -> list[str]:
    return [each.name for each in found]


def test_upwards() -> None:
    assert names(upstreams(STATE, ["b", "C", "t", "b"])) == ["B", "C"]
    assert names(ancestors(STATE, ["d"])) == ["A", "B", "C", "D"]
    assert names(ancestors(STATE, ["t"])) == []


def test_a_table_hides_a_query_of_its_name() -> None:
    state = create_table(CatalogState(), CreateTable("q", (ColumnSpec("a", "INT"),)), 0)
    own = query("Q", "q")
    state = add_query(add_query(state, own), query("R", "q"))
    assert upstreams(state, ["q"]) == []
    assert readers(state, "q") == []
    assert dependents(state, "q") == ["Q", "R"]
    assert list(drop_query(state, "q").queries) == ["r"]


def test_downwards() -> None:
    assert names(readers(STATE, "T")) == ["A", "C"]


def test_what_reaches_a_query_follows_destination_tables() -> None:
    assert origins(STATE, query("F", "e")) == {"e", "log", "c", "t"}
    assert "a" in origins(STATE, query("A", "d"))
    assert origins(STATE, query("C", "u", into="t")) == {"u"}
