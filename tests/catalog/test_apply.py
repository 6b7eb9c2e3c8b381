"""DDL as functions of the state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cq_engine.catalog.apply import (
    add_query,
    alter_table,
    create_table,
    drop_query,
    drop_table,
    find_query,
    find_table,
    replace_query,
)
from cq_engine.catalog.model import CatalogState, ContinuousQuery, ForeignKey, VersionedTable
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, CatalogError
from cq_engine.grammar.clauses import ColumnSpec, DestinationRef, ForeignKeySpec, PrimaryKeySpec
from cq_engine.grammar.statements import AlterTable, CreateTable, DropTable

CUSTOMER = CreateTable(
    "Customer", (ColumnSpec("Id", "INT"), ColumnSpec("name", "varchar(10)", False)), PrimaryKeySpec(("id",))
)
ORDERS = CreateTable(
    "orders",
    (ColumnSpec("id", "bigint"), ColumnSpec("customer", "int")),
    PrimaryKeySpec(("id",)),
    (ForeignKeySpec(("customer",), "customer", rely=True),),
)


def create(*statements: CreateTable) -> CatalogState:
    state = CatalogState()
    for statement in statements:
        state = create_table(state, statement, 3)
    return state


def query(name: str, *sources: str, **changed: Any) -> ContinuousQuery:
    result = VersionedTable(90, "delta", name, (Column("k", "int"),), ("k",))
    made = ContinuousQuery(name, 89, "", "", result, ("k",), "TRANSACTIONAL", ("I",), sources=sources)
    return replace(made, **changed)


class TestCreate:
    def test_names_are_kept_and_found_without_case(self) -> None:
        table = find_table(create(CUSTOMER), "CUSTOMER")
        assert (table.name, table.primary_key, table.created_version) == ("Customer", ("Id",), 3)
        assert table.columns == (Column("Id", "int", False), Column("name", "string", False))
        assert (table.storage.identity, table.storage.cluster_by) == (("Id",), ("Id",))

    def test_without_a_key_rows_have_a_hidden_one(self) -> None:
        table = find_table(create(replace(CUSTOMER, primary_key=None)), "customer")
        assert table.storage.has_row_id
        assert table.storage.cluster_by == ()
        assert [c.name for c in table.storage.physical_columns] == ["Id", "name", "_row_id"]

    def test_ids_are_not_used_twice(self) -> None:
        state = create(CUSTOMER, ORDERS)
        state = create_table(drop_table(state, DropTable("orders")), replace(ORDERS, name="again"), 4)
        assert [t.storage.id for t in state.tables.values()] == [1, 3]
        assert state.next_id == 4

    def test_a_foreign_key_means_the_primary_key(self) -> None:
        (key,) = find_table(create(CUSTOMER, ORDERS), "orders").foreign_keys
        assert key == ForeignKey("orders_customer_fkey", ("customer",), "Customer", ("Id",), False, True, 3)

    def test_foreign_keys_of_the_same_columns_have_names_of_their_own(self) -> None:
        keys = (ForeignKeySpec(("customer",), "customer"),) * 2
        found = find_table(create(CUSTOMER, replace(ORDERS, foreign_keys=keys)), "orders").foreign_keys
        assert [key.name for key in found] == ["orders_customer_fkey", "orders_customer_fkey1"]

    def test_a_table_may_refer_to_itself(self) -> None:
        tree = replace(ORDERS, foreign_keys=(ForeignKeySpec(("id",), "ORDERS"),))
        (key,) = find_table(create(tree), "orders").foreign_keys
        assert key.references == "orders"

    def test_if_not_exists_changes_nothing(self) -> None:
        state = create(CUSTOMER)
        assert create_table(state, replace(CUSTOMER, if_not_exists=True), 9) is state

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({}, "table Customer exists already"),
            ({"name": "t", "columns": ()}, "no columns"),
            ({"name": "t", "columns": (ColumnSpec("a", "int"), ColumnSpec("A", "int"))}, "two columns A"),
            ({"name": "t", "columns": (ColumnSpec("_Row_Id", "int"),)}, "a name that change rows need"),
            ({"name": "t", "primary_key": PrimaryKeySpec(("nam",))}, "did you mean name"),
            ({"name": "t", "primary_key": PrimaryKeySpec(("id", "ID"))}, "named twice"),
            ({"name": "t", "primary_key": PrimaryKeySpec(("id",), False)}, "NOT ENFORCED RELY"),
            ({"name": "t", "columns": (ColumnSpec("id", "map<int,int>"),)}, "which no key can be"),
            ({"name": "t", "cluster_by": ("x",)}, "CLUSTER BY: table t has no column x"),
            ({"name": "t", "foreign_keys": (ForeignKeySpec(("id",), "custmer"),)}, "did you mean Customer"),
            ({"name": "t", "foreign_keys": (ForeignKeySpec(("id",), "plain"),)}, "no primary key"),
            (
                {"name": "t", "foreign_keys": (ForeignKeySpec(("name",), "customer"),)},
                "give both the same type",
            ),
            (
                {"name": "t", "foreign_keys": (ForeignKeySpec(("id",), "customer", ("name",)),)},
                "does not match the primary key",
            ),
            (
                {"name": "t", "foreign_keys": (ForeignKeySpec(("id",), "customer", name="x"),) * 2},
                "has a foreign key x already",
            ),
        ],
    )
    def test_what_is_wrong_is_said(self, changed: dict[str, Any], message: str) -> None:
        state = create(CUSTOMER, CreateTable("plain", (ColumnSpec("id", "int"),)))
        with pytest.raises(CatalogError) as caught:
            create_table(state, replace(CUSTOMER, **changed), 4)
        assert message in str(caught.value)

    def test_an_unknown_type_is_an_analysis_error(self) -> None:
        with pytest.raises(AnalysisError, match="unknown type"):
            create(CreateTable("t", (ColumnSpec("a", "integr"),)))


class TestDrop:
    def test_in_use(self) -> None:
        state = add_query(create(CUSTOMER, ORDERS), query("Q", "Customer"))
        with pytest.raises(CatalogError) as caught:
            drop_table(state, DropTable("customer"))
        assert "continuous query Q, foreign key orders_customer_fkey of orders" in str(caught.value)

    def test_cascade(self) -> None:
        state = add_query(create(CUSTOMER, ORDERS), query("Q", "Customer"))
        state = add_query(state, query("over", "q"))
        state = drop_table(state, DropTable("customer", cascade=True))
        assert list(state.tables) == ["orders"]
        assert state.tables["orders"].foreign_keys == ()
        assert state.queries == {}

    def test_a_destination_is_in_use(self) -> None:
        state = add_query(
            create(CUSTOMER, ORDERS), query("Q", "orders", destinations=(DestinationRef("CUSTOMER"),))
        )
        with pytest.raises(CatalogError, match="in use"):
            drop_table(state, DropTable("customer"))

    def test_missing(self) -> None:
        state = create(ORDERS.__class__("t", (ColumnSpec("a", "int"),)))
        assert drop_table(state, DropTable("x", if_exists=True)) is state
        with pytest.raises(CatalogError, match="there is no table x"):
            drop_table(state, DropTable("x"))

    def test_queries(self) -> None:
        state = add_query(create(CUSTOMER), query("Q", "customer"))
        state = add_query(state, query("over", "q"))
        state = create_table(state, CreateTable("made", (ColumnSpec("a", "int"),)), 5, created_by="q")
        with pytest.raises(CatalogError, match="Q is in use"):
            drop_query(state, "q")
        dropped = drop_query(state, "q", cascade=True)
        assert dropped.queries == {}
        assert find_table(dropped, "made").created_by is None


class TestAlter:
    def test_columns(self) -> None:
        state = create(CUSTOMER)
        state = alter_table(state, AlterTable("customer", "ADD COLUMNS", (ColumnSpec("Age", "TINYINT"),)))
        assert find_table(state, "customer").columns[2] == Column("Age", "tinyint")
        with pytest.raises(CatalogError, match="NOT NULL"):
            alter_table(state, AlterTable("customer", "ADD COLUMNS", (ColumnSpec("x", "int", False),)))
        with pytest.raises(CatalogError, match="two columns AGE"):
            alter_table(state, AlterTable("customer", "ADD COLUMNS", (ColumnSpec("AGE", "int"),)))

    def test_foreign_key_and_clustering(self) -> None:
        state = create(CUSTOMER, replace(ORDERS, foreign_keys=()))
        key = ForeignKeySpec(("customer",), "customer", name="buyer", enforced=True)
        state = alter_table(state, AlterTable("orders", "ADD FOREIGN KEY", foreign_key=key))
        state = alter_table(state, AlterTable("orders", "CLUSTER BY", cluster_by=("CUSTOMER",)))
        table = find_table(state, "orders")
        assert (table.foreign_keys[0].name, table.storage.cluster_by) == ("buyer", ("customer",))

    def test_rename(self) -> None:
        state = alter_table(create(CUSTOMER, ORDERS), AlterTable("customer", "RENAME", new_name="Buyer"))
        table = find_table(state, "buyer")
        assert (table.name, table.storage.name, table.storage.id) == ("Buyer", "Buyer", 1)
        assert find_table(state, "orders").foreign_keys[0].references == "Buyer"
        with pytest.raises(CatalogError, match="ORDERS exists already"):
            alter_table(state, AlterTable("buyer", "RENAME", new_name="ORDERS"))
        with pytest.raises(CatalogError, match="in use"):
            alter_table(add_query(state, query("Q", "buyer")), AlterTable("buyer", "RENAME", new_name="x"))


class TestNames:
    def test_a_query_may_have_the_name_of_a_table_but_not_a_table_that_of_a_query(self) -> None:
        state = add_query(create(CUSTOMER), query("Q", "customer"))
        with pytest.raises(CatalogError, match="continuous query q exists"):
            create_table(state, CreateTable("q", (ColumnSpec("a", "int"),)), 4)
        assert "customer" in add_query(state, query("CUSTOMER")).queries  # the table hides it in queries
        with pytest.raises(CatalogError, match="q is a continuous query, not a table"):
            find_table(state, "q")
        with pytest.raises(CatalogError, match="customer is a table"):
            find_query(state, "customer")
        with pytest.raises(CatalogError, match="no continuous query R"):
            find_query(state, "R")

    def test_replace(self) -> None:
        state = add_query(create(CUSTOMER), query("Q", "customer"))
        assert (
            find_query(replace_query(state, query("Q", "customer", mode="COMPRESSED")), "q").mode
            == "COMPRESSED"
        )
