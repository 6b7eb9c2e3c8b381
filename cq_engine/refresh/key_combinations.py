"""Which combinations of values the keys of a delta have, where a key has several columns.

Rows are looked up by the values of each column. Of the rows that this finds, those are needed whose values together are a
key of the delta: of 200 000 keys over two columns it may find all rows of a table, and hardly any of them is needed.

The columns of a delta that runtime filters name together are columns of the same rows: an operator wants rows for its own
keys, or for its own rows, and passes on to its inputs what it wants. So are columns of the rows below that they come from
together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby

import pyarrow as pa

from cq_engine.algebra.analysis.lineage import row_lineages
from cq_engine.algebra.nodes import Node, RuntimeFilter
from cq_engine.core.columns import Column
from cq_engine.storage.file_look_ups import Choose
from cq_engine.storage.identities import combinations

__all__ = ["ALL_ROWS", "KeyCombinations", "find_rows", "group_filters"]

RowsOf = Callable[[Node, Sequence[str]], "pa.Table | None"]


class KeyCombinations:
    """Chooses rows by several columns together.

    Args:
        key: the same for combinations that choose the same rows.
        find: the combinations, by the columns' names; None where the driver does not know them.
        columns: of the table whose rows are chosen.
    """

    def __init__(self, key: Hashable, find: Callable[[], pa.Table | None], columns: Sequence[Column]) -> None:
        self.key = key
        self._find = find
        self._columns = columns

    @cached_property
    def choose(self) -> Choose | None:
        """Says of rows which may be needed; None for all of them. Found when it is asked for first."""
        found = self._find()
        return None if found is None else combinations(found, self._columns)


ALL_ROWS = KeyCombinations((), lambda: None, ())
"""Where single values say which rows are needed."""


def group_filters(filters: Iterable[RuntimeFilter], counts: Mapping[str, int]) -> list[RuntimeFilter]:
    """The most of the filters that want columns of the same rows, where these are more than one that has several values;
    `counts` are the numbers of values of the columns that a look-up goes by."""
    several = sorted((f for f in filters if counts.get(f.column, 0) > 1), key=lambda f: id(f.leaf))
    groups = [list(group) for _, group in groupby(several, key=lambda f: id(f.leaf))]
    largest = max(groups, key=len, default=[])
    return largest if len(largest) > 1 else []


def find_rows(node: Node, names: Sequence[str], rows_of: RowsOf) -> pa.Table | None:
    """At least the combinations that rows of a delta plan have in the columns `names`, by position; None where they cannot
    be known. `rows_of` gives them where they are at hand."""
    found = rows_of(node, names)
    if found is not None:
        return found.rename_columns([str(n) for n in range(len(names))])
    for way in row_lineages(node, names):
        parts = [find_rows(below, columns, rows_of) for below, columns in way]
        known = [part for part in parts if part is not None]
        if known and len(known) == len(parts) and len({part.schema for part in known}) == 1:
            return pa.concat_tables(known)
    return None
