"""Published tables as three readers of Delta Lake see them, and commits of many rows to publish."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet

Row = dict[str, Any]


def by_deltalake(path: str) -> list[Row]:
    return DeltaTable(path).to_pyarrow_table().to_pylist()


def by_polars(path: str) -> list[Row]:
    return pl.read_delta(path).to_arrow().to_pylist()


def by_duckdb(path: str) -> list[Row]:
    table = DeltaTable(path)
    names = ", ".join(f'"{field.name}"' for field in table.schema().fields)
    if not table.file_uris():
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        reader = connection.sql(
            f"SELECT {names} FROM read_parquet(?, union_by_name = true)", params=[table.file_uris()]
        )
        return reader.to_arrow_table().to_pylist()


def read(catalog: Catalog, path: str) -> list[Row]:
    """The rows of a published table, which all three readers agree on, in order."""
    full = f"{catalog.warehouse}/{path}"
    found = [sorted(by(full), key=repr) for by in (by_deltalake, by_polars, by_duckdb)]
    assert found[0] == found[1]
    assert found[0] == found[2]
    return found[0]


def logged(sample: Any, rows: pa.Table) -> list[Row]:
    """Change rows as a published log shows them."""
    shown = [{**r, "_commit_timestamp": sample.when(r["_commit_version"])} for r in rows.to_pylist()]
    return sorted(shown, key=repr)


def bulk(catalog: Catalog, sample: Any, keys: list[int]) -> None:
    attempt = catalog.attempt("copy")
    file = write_parquet(
        sample.plain(keys),
        f"{attempt.directory(sample.orders, 'snapshot')}/part-0.parquet",
        catalog.store,
        ["k"],
    )
    with catalog.lock, catalog.write(attempt) as unit:
        version = catalog.newest_version + 1
        unit.add_commit(version, sample.when(version))
        unit.add_change_files(
            sample.orders, version, version, [file], frozenset({"INSERT"}), insert_only=True
        )


def compact(catalog: Catalog, sample: Any, keys: list[int]) -> None:
    attempt = catalog.attempt("compact")
    file = write_parquet(
        sample.plain(keys),
        f"{attempt.directory(sample.orders, 'snapshot')}/part-0.parquet",
        catalog.store,
        ["k"],
    )
    old = [f.path for f in catalog.layout(1, catalog.newest_version).snapshot]
    with catalog.write(attempt) as unit:
        unit.advance_snapshot(sample.orders, catalog.newest_version, [file], old)
