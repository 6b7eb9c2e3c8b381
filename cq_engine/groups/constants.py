"""The tables of constants of query groups, of which nothing is stored: their rows are what the members' texts say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

import pyarrow as pa

from cq_engine.catalog.groups import members
from cq_engine.catalog.model import ContinuousQuery, QueryGroup, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.core.errors import CatalogError
from cq_engine.core.keeping import keep
from cq_engine.core.types import arrow_schema

__all__ = ["Constants"]


class Constants:
    """The members of every group and the rows of its table of constants, made again when definitions change."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._known: dict[str, tuple[object, dict[int, ContinuousQuery], pa.Table]] = {}
        self._part: dict[int, pa.Table] = {}

    def members(self, group: QueryGroup) -> dict[int, ContinuousQuery]:
        """The members by their ids."""
        return self._find(group)[0]

    def rows(self, table: VersionedTable) -> pa.Table:
        """The rows of a table of constants, for the reader."""
        if table.id in self._part:
            return self._part[table.id]
        for group in self.catalog.state.groups.values():
            if group.constants.storage.id == table.id:
                return self._find(group)[1]
        raise CatalogError(f"the query group of versioned table {table.id} is gone")

    def forget_gone(self) -> None:
        """Takes the members of groups that are gone out of memory."""
        keep(self._known, {group.name for group in self.catalog.state.groups.values()})

    def _find(self, group: QueryGroup) -> tuple[dict[int, ContinuousQuery], pa.Table]:
        state = self.catalog.state
        known = self._known.get(group.name)
        if known is None or known[0] is not state.queries:
            each = members(state, group)
            known = (state.queries, {query.id: query for query in each}, _rows(group, each))
            self._known[group.name] = known
        return known[1], known[2]

    @contextmanager
    def only(self, group: QueryGroup, part: Sequence[ContinuousQuery]) -> Iterator[None]:
        """Inside, the group has no other members than `part`. Whoever asks for this holds the group."""
        number = group.constants.storage.id
        before = self._part.get(number)
        self._part[number] = _rows(group, part)
        try:
            yield
        finally:
            if before is None:
                del self._part[number]
            else:
                self._part[number] = before


def _rows(group: QueryGroup, part: Sequence[ContinuousQuery]) -> pa.Table:
    columns = group.constants.storage.columns
    schema = arrow_schema(columns)
    arrays = [pa.array([query.id for query in part], pa.int64())]
    for place, field in enumerate(list(schema)[1:]):
        values = [_value(query.constants[place], columns[place + 1].type) for query in part]
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _value(text: str, kind: str) -> object:
    """A literal's value, of which `text` is what the query says."""
    if kind in ("int", "bigint"):
        return int(text)
    if kind.startswith("decimal"):
        return Decimal(text)
    return float(text) if kind == "double" else text
