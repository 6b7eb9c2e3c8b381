"""What a source says of its relations."""

from __future__ import annotations

import pytest

from cq_engine.core.errors import SourceError
from cq_engine.sources.sql.model import Index
from cq_engine.sources.sql.relation import describe, describe_query
from tests.sources.shops import Shop


def test_a_table_has_columns_a_key_and_indexes(shop: Shop) -> None:
    name = shop.fresh("Mixed Case")
    other = shop.quoted('odd " name')
    shop.run(
        f"CREATE TABLE {name} (b INT NOT NULL, a VARCHAR(10) NOT NULL, {other} DECIMAL(12,3), PRIMARY KEY (b, a))"
    )
    shop.run(f"CREATE UNIQUE INDEX i1 ON {name} ({other}, b)")
    found = shop.relation(name)
    assert [c.name for c in found.columns] == ["b", "a", 'odd " name']
    assert [c.nullable for c in found.columns] == [False, False, True]
    assert [c.type for c in found.columns] == [
        "bigint" if shop.kind == "sqlite" else "int",
        "string",
        "decimal(12,3)",
    ]
    assert found.key == ("b", "a")
    assert [i.columns for i in found.indexes if i.unique] == [("b", "a"), ('odd " name', "b")]
    assert found.indexes[1] == Index("i1", ('odd " name', "b"), True)
    assert found.column("B").name == "b"
    with pytest.raises(SourceError, match="has no column od"):
        found.column("od")


def test_names_are_found_as_the_source_finds_them(shop: Shop) -> None:
    shop.run(f"CREATE TABLE {shop.quoted('Customers')} (id INT PRIMARY KEY)")
    assert describe(shop.database, "customers").name == "Customers"
    assert describe(shop.database, shop.quoted("Customers")).name == "Customers"
    schema = {"sqlite": "main", "postgresql": "public", "mariadb": shop.url.rpartition("/")[2]}[shop.kind]
    assert describe(shop.database, f"{schema}.CUSTOMERS").schema in (schema, None)
    for wrong in ("custmers", shop.quoted("cUSTOMERS")):
        with pytest.raises(SourceError, match="has no table") as error:
            describe(shop.database, wrong)
        assert error.value.hint == "did you mean Customers?"
    with pytest.raises(SourceError, match="has no table"):
        describe(shop.database, "nowhere.customers")
    for nonsense in ("a b", "select 1", "", "a.b.c.d"):
        with pytest.raises(SourceError):
            describe(shop.database, nonsense)


def test_two_names_that_differ_in_case(shop: Shop) -> None:
    if shop.kind == "sqlite":  # has no such tables
        return
    for name in ("Stock", "stocK"):
        shop.run(f"CREATE TABLE {shop.quoted(name)} (id INT PRIMARY KEY)")
    with pytest.raises(SourceError, match="several tables STOCK"):
        describe(shop.database, "STOCK")
    assert describe(shop.database, "stocK").name == "stocK"


def test_a_view_has_columns_and_no_key(shop: Shop) -> None:
    shop.run("CREATE TABLE base (id INT PRIMARY KEY, v VARCHAR(9))")
    shop.run("CREATE VIEW over_it AS SELECT id, v FROM base WHERE id > 0")
    found = describe(shop.database, "over_it")
    assert ([c.name for c in found.columns], found.key, found.indexes) == (["id", "v"], (), ())


def test_a_query_is_the_sources_own(shop: Shop) -> None:
    found = describe_query(shop.database, "SELECT 1 AS one, CAST('7.50' AS DECIMAL(10,2)) AS price;")
    assert [c.name for c in found.columns] == ["one", "price"]
    if shop.kind != "sqlite":
        assert found.column("price").type.startswith("decimal(1")
    with pytest.raises(SourceError, match="source shop"):
        describe_query(shop.database, "SELECT nothing FROM nowhere")
    with pytest.raises(SourceError, match="empty"):
        describe_query(shop.database, " ; ")


def test_order_is_the_warehouses_where_text_is_compared_byte_by_byte(shop: Shop) -> None:
    plain, other = {
        "sqlite": ("TEXT", "TEXT COLLATE NOCASE"),
        "postgresql": ('text COLLATE "C"', 'text COLLATE "en-x-icu"'),
        "mariadb": (
            "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
            "VARCHAR(9) COLLATE utf8mb4_bin",
        ),
    }[shop.kind]
    for number, (declared, ordered) in enumerate(((plain, True), (other, False), ("INT", True))):
        shop.run(f"CREATE TABLE ordered{number} (k {declared} PRIMARY KEY)")
        assert shop.relation(f"ordered{number}").column("k").ordered is ordered
