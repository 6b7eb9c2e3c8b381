"""Scans of a plan to relations: the images of its tables, and of its states, at one version."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame

from cq_engine.algebra.emit import quote
from cq_engine.algebra.nodes import Node, Scan, StateRows
from cq_engine.catalog.model import VersionedTable
from cq_engine.spark.sql import fresh_name
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import empty

__all__ = ["ImageBinder", "select_fields"]


class ImageBinder:
    """Binds scans to the tables' images at one version, or to no rows where that is None; states likewise. Of a table in `read`
    the columns that are not there may be NULL."""

    def __init__(
        self,
        reader: Reader,
        tables: Mapping[str, VersionedTable],
        version: int | None,
        states: Mapping[str, VersionedTable] | None = None,
        read: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.reader = reader
        self.tables = tables
        self.version = version
        self.states = states or {}
        self.read = read or {}
        self.relations: dict[str, DataFrame] = {}
        self._names: dict[tuple[str, str], str] = {}

    def __call__(self, leaf: Node) -> str:
        if isinstance(leaf, StateRows):
            state = self.states[leaf.label]
            shown = tuple(zip(leaf.names, (c.name for c in state.columns)))
            return select_fields(shown, self._relation(("state", leaf.label), state))
        assert isinstance(leaf, Scan)
        return select_fields(leaf.fields, self._relation(("table", leaf.table), self.tables[leaf.table]))

    def _relation(self, key: tuple[str, str], table: VersionedTable) -> str:
        if key not in self._names:
            name = self._names[key] = fresh_name(key[1])
            if self.version is None:
                self.relations[name] = self.reader.frame(
                    empty(table.physical_columns), table.physical_columns
                )
            else:
                wanted = self.read.get(key[1]) if key[0] == "table" else None
                self.relations[name] = self.reader.image(table, self.version, wanted=wanted)
        return self._names[key]


def select_fields(fields: tuple[tuple[str, str], ...], relation: str, *extra: tuple[str, str]) -> str:
    """The fields of a relation by the plan's names, and `extra` (the relation's name, the plan's name)."""
    shown = [
        quote(source) if name == source else f"{quote(source)} AS {quote(name)}" for name, source in fields
    ]
    return f"(SELECT {', '.join([*shown, *(f'{own} AS {name}' for own, name in extra)])} FROM {relation})"
