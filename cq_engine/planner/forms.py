"""The form of a delta, chosen per refresh: what of the base tables it does without (Witkowski et al., VLDB 2007).

| form | what it reads of a base table that a changed row joins |
|---|---|
| `general` | the rows with the changed rows' keys (slides 18-19) |
| `fk_pk` | of a table with a foreign key: not the rows of parents that were inserted or deleted in the interval, because nothing that did not change itself can refer to them (slide 20) |
| `fk_pk_units` | that, and of a table by its primary key: not the rows that changed themselves, because the change rows have them; the rest is the paper's anti-join (slides 21-27) |
| `recompute` | everything, twice: the results before and after are compared |

`pre_image` says where a changed row is taken from as it was before: `undo`, its own before-image in the change log, or
`sql`, the base table (slides 19 and 31).

Everything here is pure: statistics of the interval in, a decision with its reasons out.

>>> orders = TableStatistics("orders", 1_000_000, 200, frozenset({"INSERT"}))
>>> lines = TableStatistics("orderline", 10_000_000, 2_000, frozenset({"INSERT"}))
>>> key = Reference("orderline", ("oid",), "orders", ("oid",), 0)
>>> decision = choose(Statistics((orders, lines), (key,)))
>>> decision.form
'fk_pk_units'
>>> choose(Statistics((orders, lines), (key,)), form="general").reasons
("WITH (form = 'general') asks for it",)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cq_engine.catalog.model import CatalogState
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "Decision",
    "LookUp",
    "Reference",
    "Statistics",
    "TableStatistics",
    "choose",
    "references",
    "worth_counting",
]


@dataclass(frozen=True)
class TableStatistics:
    """A table over (a, b]: rows at about `a`, change rows (an update has two), and of which kinds they are."""

    name: str
    rows: int
    changed: int = 0
    kinds: frozenset[str] = frozenset()
    key: tuple[str, ...] = ()
    """The columns that identify a row."""
    recent: int = 0
    """Change rows between the table's snapshot and `a`: they are read with those of the interval."""
    scans: int = 1
    """How often it stands in the query."""

    def __str__(self) -> str:
        kinds = f" ({', '.join(sorted(self.kinds))})" if self.kinds else ""
        return f"{self.name}: {self.changed} change rows{kinds}, about {self.rows} rows before"


@dataclass(frozen=True)
class Reference:
    """A foreign key that is ENFORCED or RELY, from the commit `since` on; tables by lower-case name.

    `columns` of `child` refer to `parent_columns`, which are the parent's primary key in its own order.
    """

    child: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]
    since: int

    def __str__(self) -> str:
        there = ", ".join(self.parent_columns)
        return f"{self.child} ({', '.join(self.columns)}) REFERENCES {self.parent} ({there})"


@dataclass(frozen=True)
class Statistics:
    """What a decision is made from. `per_commit`: a delta is wanted for each of several commits."""

    tables: tuple[TableStatistics, ...]
    references: tuple[Reference, ...] = ()
    per_commit: bool = False

    @property
    def changed(self) -> tuple[TableStatistics, ...]:
        return tuple(table for table in self.tables if table.changed)


@dataclass(frozen=True)
class Decision:
    """The form and pre-image of one refresh, and why."""

    form: str = "fk_pk_units"
    pre_image: str = "undo"
    reasons: tuple[str, ...] = ()

    @property
    def keys(self) -> bool:
        """True where foreign keys say what need not be read."""
        return self.form in ("fk_pk", "fk_pk_units")

    @property
    def units(self) -> bool:
        """True where rows that changed are taken from the change rows, not looked up."""
        return self.form == "fk_pk_units"

    @property
    def undo(self) -> bool:
        return self.pre_image == "undo"

    def __str__(self) -> str:
        return self.form if self.undo else f"{self.form}, pre-image by {self.pre_image}"


@dataclass(frozen=True)
class LookUp:
    """How many keys of a table a refresh wanted (None: not counted), and how many of them were `left` to be read.

    `in_changes` are in the table's own change rows, `without_rows` no row that did not change can have.
    """

    table: str
    columns: tuple[str, ...]
    wanted: int | None
    in_changes: int = 0
    without_rows: int = 0
    left: int = 0

    def __str__(self) -> str:
        wanted = "keys of change rows" if self.wanted is None else f"{self.wanted} keys"
        shown = f"{self.table} by {', '.join(self.columns)}: {wanted} wanted"
        if self.in_changes:
            shown += f", {self.in_changes} in its own change rows"
        if self.without_rows:
            shown += f", {self.without_rows} of parents that came or went, which no unchanged row can have"
        return f"{shown}, {self.left} to be read" if self.left else f"{shown}, nothing to be read"


def references(state: CatalogState, sources: Mapping[str, int]) -> tuple[Reference, ...]:
    """The foreign keys that plans may rest on, among base tables (lower-case name → id of the versioned table)."""
    found = []
    for name, number in sorted(sources.items()):
        child = state.tables.get(name)
        if child is None or child.storage.id != number:
            continue
        for key in child.foreign_keys:
            parent = state.tables.get(key.references.lower())
            if not key.trusted or parent is None or parent.primary_key is None:
                continue
            if sources.get(parent.name.lower()) != parent.storage.id:
                continue
            mine = dict(zip(key.ref_columns, key.columns))
            columns = tuple(mine[name] for name in parent.primary_key)
            found.append(Reference(name, columns, parent.name.lower(), parent.primary_key, key.since))
    return tuple(found)


# ------------------------------------------------------------------------------------------------ the choice


def worth_counting(wanted: int, base: int, always: int = 0) -> bool:
    """True where a query over `wanted` change rows, to see which of their keys are left, is cheap beside a scan; below
    `always` in any case."""
    return wanted < max(base, always)


def choose(
    statistics: Statistics, form: str = "auto", pre_image: str = "auto", limits: Limits = DEFAULT_LIMITS
) -> Decision:
    """The cheapest form for an interval, unless `form` or `pre_image` asks for one."""
    reasons: list[str] = []
    if form != "auto":
        reasons.append(f"WITH (form = '{form}') asks for it")
    else:
        form, why = _form(statistics, limits)
        reasons.append(why)
    if pre_image != "auto":
        reasons.append(f"WITH (pre_image = '{pre_image}') asks for it")
    else:
        pre_image = "undo"  # never dearer: the before-images come along with the after-images
    return Decision(form, pre_image, tuple(reasons))


def _form(statistics: Statistics, limits: Limits) -> tuple[str, str]:
    changed = statistics.changed
    rows = sum(table.rows for table in statistics.tables)
    moved = sum(table.changed for table in changed)
    enough = max(limits.recompute_rows, limits.recompute_share * rows)
    if not statistics.per_commit and moved > enough:
        return "recompute", f"{moved} change rows are more than the {rows} rows of all tables"
    if len(changed) > 1 or any(table.scans > 1 for table in changed):
        names = ", ".join(table.name for table in changed)
        return "fk_pk_units", f"{names} changed: their rows that join each other are in the change rows"
    recent = ", ".join(table.name for table in statistics.tables if table.recent and not table.changed)
    if recent:
        return "fk_pk_units", f"{recent} changed since the last snapshot: what it got is in the change rows"
    key = next((k for k in statistics.references if k.parent in {table.name for table in changed}), None)
    if key is not None:
        return "fk_pk", f"{key.parent} changed, and {key}"
    return "general", "one table changed, and no foreign key refers to it"
