"""Scans of a plan to relations: the images of its tables at one version."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from cq_engine.algebra.emit import quote
from cq_engine.algebra.nodes import Node, Scan
from cq_engine.catalog.model import VersionedTable
from cq_engine.spark.sql import fresh_name
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import empty

__all__ = ["ImageBinder", "select_fields"]


class ImageBinder:
    """Binds scans to the tables' images at one version, or to no rows where that is None."""

    def __init__(self, reader: Reader, tables: Mapping[str, VersionedTable], version: int | None) -> None:
        self.reader = reader
        self.tables = tables
        self.version = version
        self.relations: dict[str, DataFrame] = {}
        self._names: dict[str, str] = {}

    def __call__(self, leaf: Node) -> str:
        assert isinstance(leaf, Scan)
        if leaf.table not in self._names:
            table = self.tables[leaf.table]
            name = self._names[leaf.table] = fresh_name(leaf.table)
            if self.version is None:
                self.relations[name] = self.reader.frame(
                    empty(table.physical_columns), table.physical_columns
                )
            else:
                self.relations[name] = self.reader.image(table, self.version)
        return select_fields(leaf.fields, self._names[leaf.table])


def select_fields(fields: tuple[tuple[str, str], ...], relation: str, *extra: tuple[str, str]) -> str:
    """The fields of a relation by the plan's names, and `extra` (the relation's name, the plan's name)."""
    shown = [
        quote(source) if name == source else f"{quote(source)} AS {quote(name)}" for name, source in fields
    ]
    return f"(SELECT {', '.join([*shown, *(f'{own} AS {name}' for own, name in extra)])} FROM {relation})"
