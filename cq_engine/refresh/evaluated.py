"""Results and states of small tables from scratch, evaluated by the driver: their images are in memory, and no Spark is needed.

What they give is what the same plan gives as SQL (`refresh.recompute`). Where there is anything that only Spark evaluates, a table
that is not small, or a value that is too large, it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.algebra.nodes import Node, Scan, StateRows
from cq_engine.catalog.model import VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.delta.stored import initial_state
from cq_engine.evaluation.statements import output_rows
from cq_engine.evaluation.vectors import Rows, TooLargeError, UnsupportedError
from cq_engine.planner.compiled import Compiled, StoredAggregate
from cq_engine.planner.stored_result import stored_result
from cq_engine.storage.reader import Reader

__all__ = ["evaluated_from_states", "evaluated_result", "evaluated_state"]


class _NotSmallError(Exception):
    """The rows of a table are not in memory."""


_Relation = tuple[pa.Table, Sequence[Column]]
_States = Callable[[str], _Relation]
"""The rows of a state by its label, in the order of its columns. Raises _NotSmallError."""


class _Images:
    """Gives the rows of leaves: those of the tables' images at one version, and those of states."""

    def __init__(
        self, reader: Reader, tables: Mapping[str, VersionedTable], version: int, states: _States
    ) -> None:
        self._reader = reader
        self._tables = tables
        self._version = version
        self._states = states

    def __call__(self, leaf: Node) -> Rows:
        if isinstance(leaf, StateRows):
            rows, columns = self._states(leaf.label)
            count = len(leaf.names)
            return Rows.of(rows.select(range(count)), columns[:count], leaf.names)
        assert isinstance(leaf, Scan)
        rows, columns = _small_image(self._reader, self._tables[leaf.table], self._version)
        by_name = {c.name: c for c in columns}
        sources = [source for _, source in leaf.fields]
        return Rows.of(rows.select(sources), [by_name[name] for name in sources], leaf.columns)


def _small_image(reader: Reader, table: VersionedTable, version: int) -> _Relation:
    image = reader.small_image(table, version)
    if image is None:
        raise _NotSmallError(table.name)
    return image, table.physical_columns


def _no_states(label: str) -> _Relation:
    raise _NotSmallError(label)


def evaluated_state(
    services: Services, compiled: Compiled, stored: StoredAggregate, version: int
) -> pa.Table | None:
    """The rows of a stored aggregate after commit `version`, as `recompute.state_at` gives them."""
    node = initial_state(stored.node, stored.state)
    return _evaluated(services, compiled, node, node.columns, stored.columns, version, _no_states)


def evaluated_result(services: Services, compiled: Compiled, version: int) -> pa.Table | None:
    """The query's result after commit `version`, as `recompute.result_at` gives it: of stored aggregates from their states then."""
    if compiled.node is None:
        return None
    stored = {each.state.label: each for each in compiled.stored}

    def states(label: str) -> _Relation:
        rows = evaluated_state(services, compiled, stored[label], version)
        if rows is None:
            raise _NotSmallError(label)
        return rows, stored[label].columns

    plan = stored_result(compiled) or compiled.node
    return _evaluated(services, compiled, plan, compiled.outputs, compiled.columns, version, states)


def evaluated_from_states(
    services: Services,
    compiled: Compiled,
    plan: Node,
    version: int,
    states: Mapping[str, VersionedTable],
    member: int | None,
) -> pa.Table | None:
    """The result from what is stored for it, as `planner.stored_result` says; of a query group's the rows of one member."""

    def image(label: str) -> _Relation:
        return _small_image(services.reader, states[label], version)

    rows = _evaluated(services, compiled, plan, compiled.outputs, compiled.columns, version, image)
    if rows is None or member is None:
        return rows
    return rows.filter(pc.equal(rows.column(rows.num_columns - 1), member))


def _evaluated(
    services: Services,
    compiled: Compiled,
    node: Node,
    outputs: Sequence[str],
    columns: Sequence[Column],
    version: int,
    states: _States,
) -> pa.Table | None:
    tables = {name: table.storage for name, table in compiled.sources.items()}
    images = _Images(services.reader, tables, version, states)
    try:
        return output_rows(node, outputs, columns, images, services.limits.arrow_rows)
    except (_NotSmallError, UnsupportedError, TooLargeError, pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None
