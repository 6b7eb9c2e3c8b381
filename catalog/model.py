"""What the catalog knows, as frozen records. No SQL, no files, no Spark here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.core.columns import Column
from cq_engine.grammar.clauses import (
    CapturedColumn,
    CaptureMethod,
    DestinationRef,
    OnCommit,
    RemoteRelation,
    Script,
    When,
)

PARTIAL = "PARTIAL"
"""The verdict on queries that are maintained from partial changes."""
CHANGES = "changes"
"""The kind of storage of a table WITHOUT SNAPSHOT."""
REMOTE = "remote"
"""The kind of storage of a table that stays at its source: there is none here."""


@dataclass(frozen=True)
class ForeignKey:
    name: str
    columns: tuple[str, ...]
    references: str
    ref_columns: tuple[str, ...]
    enforced: bool = False
    rely: bool = False
    since: int = 0
    """The newest commit when it was declared: what it says of earlier versions, nobody has promised."""

    @property
    def trusted(self) -> bool:
        """True where plans may rest on it."""
        return self.enforced or self.rely


@dataclass(frozen=True)
class VersionedTable:
    """The physical face of a base table, of a query's delta log, or of a stored block's state.

    `identity` are the columns that identify a row: the primary key, or `(_row_id,)`; `()` for a table of one row.
    `kind` is base, changes (a base table WITHOUT SNAPSHOT: nobody reads its rows, only its changes), remote, delta, state, result
    (of a continuous query, for those that read it), or constants (of a group: nothing is stored, its rows are what the
    definitions of its members say).
    """

    id: int
    kind: str
    name: str
    columns: tuple[Column, ...]
    identity: tuple[str, ...]
    cluster_by: tuple[str, ...] = ()
    part: int | None = None
    """Of a delta log that several queries share: the number of the one whose rows these are (`_member`)."""

    @property
    def has_row_id(self) -> bool:
        return self.identity == (ROW_ID,)

    @property
    def physical_columns(self) -> tuple[Column, ...]:
        """The table's columns and, where it has one, the hidden row identity."""
        return (*self.columns, Column(ROW_ID, "bigint", nullable=False)) if self.has_row_id else self.columns


@dataclass(frozen=True)
class Table:
    """A base table. `storage.id` is its versioned table, of which a table that stays at its source has the columns only."""

    name: str
    storage: VersionedTable
    primary_key: tuple[str, ...] | None = None
    primary_key_enforced: bool = True
    foreign_keys: tuple[ForeignKey, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    created_version: int = 0
    created_by: str | None = None
    """The continuous query that created it as its destination, if one did."""
    remote: RemoteRelation | None = None
    """Where its rows are, of a table that stays at its source."""
    part_of: str | None = None
    """The continuous query whose part over tables at their sources this is, where it is one: only its captures write it."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.storage.columns

    @property
    def has_snapshot(self) -> bool:
        """False for a table WITHOUT SNAPSHOT, of which only the changes are kept, and for one that stays at its source."""
        return self.storage.kind not in (CHANGES, REMOTE)


@dataclass(frozen=True)
class OutputColumn:
    """A column of the outermost SELECT list, as a destination gets it.

    `kind` is result, marker, old, time, commit_time or commit_version. For result and old, `index` says which of the
    delta log's columns it shows (of the new row, of the old row).
    """

    name: str
    type: str
    kind: str = "result"
    index: int = -1


@dataclass(frozen=True)
class ContinuousQuery:
    """The definition of a continuous query (what CREATE says and what was derived from it then)."""

    name: str
    id: int
    statement: str
    """The CREATE statement in canonical text."""
    query: str
    """The defining query as written."""
    result: VersionedTable
    """The delta log: kind `delta`, the result columns, and as identity the result key's columns (or `_sequence`)."""
    key: tuple[str, ...] | None
    """The result key; () for at most one row, None for a multiset."""
    mode: str
    markers: tuple[str, ...]
    when: When = OnCommit()
    destinations: tuple[DestinationRef, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    sources: tuple[str, ...] = ()
    states: tuple[tuple[str, VersionedTable], ...] = ()
    """Stored blocks by label."""
    session: tuple[tuple[str, str], ...] = ()
    """Spark settings that change meaning, as they were at CREATE."""
    verdict: str = "INCREMENTAL"
    reasons: tuple[str, ...] = ()
    created_version: int = 0
    defined_version: int = 0
    """From when on the result is that of this defining query, where it had another one before; else 0."""
    outputs: tuple[OutputColumn, ...] = ()
    """The SELECT list as written, delta functions included: what a destination gets."""
    width: int = 0
    """How many of the delta log's columns are result columns; the rest are expressions that cq_old_value asks for."""
    source_columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The columns that its tables had at CREATE, by lower-case table name: what `*` means."""
    declared: bool = False
    """True where PRIMARY KEY was written."""
    key_checked: bool = False
    """True where the key was declared and not derived, so that every touched key is checked."""
    functions: tuple[str, ...] = ()
    """The functions of the user that it calls, also inside of SQL functions, lower case."""
    relation: Table | None = None
    """The result as a table of the query's name, for the queries that read it and for destinations that are the result;
    None where there are none.

    Its rows are the result at `created_version` and the changes of every refresh since. Its primary key is the result
    key (whose columns may be NULL, other than a base table's); without one, rows have a hidden identity."""
    group: str | None = None
    """The query group that refreshes it with others (`QueryGroup`), under whose number in the shared log its `id` stands."""
    constants: tuple[str, ...] = ()
    """Of a query group's member: its constants, as the text has them, in the order of the query group's places."""
    consistency: str | None = None
    """COMPLETE, STRONG or CONVERGENT, where it was written: of a query over tables that stay at their sources."""
    remote: tuple[str, ...] = ()
    """These tables, in lower case. `query` reads the part over them from a table of its own (`Table.part_of`)."""
    analysed: tuple[tuple[str, str], ...] = ()
    """What Spark said of the definition when it was created, by question (`definition.answers`)."""


@dataclass(frozen=True)
class QueryGroup:
    """Continuous queries that differ in constants only, refreshed as one query over a table of the constants.

    The members are the queries of the state with its name in `group`. They have its position, and nothing else moves
    them. Member m's rows in the delta log and the states are those with m's id in the column `_member`.
    """

    query: ContinuousQuery
    """What is refreshed. Its delta log has the members' columns and, last, `_member`."""
    pattern: ContinuousQuery
    """The definition that the members share: that of the first one, whether it is still there or not."""
    constants: Table
    """The columns `_member`, `c0`, `c1`, ..."""
    places: tuple[int, ...]
    """Which literals of the text are the constants, by their number in it."""
    ready: int = 0
    """Members up to this id have rows in the states; those of others are computed before the next refresh."""

    @property
    def name(self) -> str:
        return self.query.name


@dataclass(frozen=True)
class QueryStatus:
    """The moving part of a query. `state` is ACTIVE, PAUSED or FAILED; `last_refresh` is when it was created, until
    it is refreshed."""

    position: int
    state: str = "ACTIVE"
    error: str = ""
    last_refresh: datetime | None = None


@dataclass(frozen=True)
class Cursor:
    """How far a destination has been served: everything up to and including (version, sequence).

    A `sequence` below 0 is the number of the order that has placed it there (`Destination.placed`).
    """

    query: str
    destination: str
    version: int
    sequence: int = 0
    failures: int = 0
    error: str = ""
    rows: int = 0
    """How many deltas it has received."""
    dead: int = 0
    """How many were given to the dead letters instead."""


@dataclass(frozen=True)
class RefreshRecord:
    """One row of SHOW REFRESHES."""

    query: str
    from_version: int
    to_version: int
    inserted: int
    deleted: int
    updated: int
    plan: str
    seconds: float
    finished: datetime


@dataclass(frozen=True)
class DataFile:
    """A Parquet file; `path` is relative to the warehouse. `stats`: column → (min, max) as JSON values, where known."""

    path: str
    rows: int
    bytes: int
    stats: Mapping[str, tuple[object, object]] = field(default_factory=dict)


@dataclass(frozen=True)
class ChangeSet:
    """The change rows of one versioned table for the commit versions [low, high].

    Exactly one of `inline_id` (Arrow IPC in the catalog) and `files` holds the rows. With `insert_only` the files
    hold plain rows (no `_change_type`, no `_commit_version`): all of them inserts of version `low` (= `high`).
    Files of other change sets also hold `_commit_timestamp`; inline rows do not.
    """

    table_id: int
    low: int
    high: int
    rows: int
    kinds: frozenset[str]
    """Which of INSERT, DELETE, UPDATE (the words themselves, as in ON INSERT OR UPDATE TO) occur."""
    inline_id: int | None = None
    files: tuple[DataFile, ...] = ()
    insert_only: bool = False
    id: int = 0
    """The catalog's number of it; never used twice within a table."""

    def rows_within(self, a: int, b: int) -> int:
        """About how many of the rows lie in (a, b], if its commits are alike."""
        within = min(b, self.high) - max(a, self.low - 1)
        return -(-self.rows * max(0, within) // (self.high - self.low + 1))


@dataclass(frozen=True)
class Layout:
    """What to read for the rows and changes of one versioned table from version `base` on.

    The image at `base` is the union of `snapshot` (empty files list: empty image). `changes` are the change sets
    with base < high, in version order. One that was flushed may begin at or below `base`: take only its rows
    with `_commit_version` > base.
    """

    table_id: int
    base: int
    snapshot: tuple[DataFile, ...]
    changes: tuple[ChangeSet, ...]


@dataclass(frozen=True)
class SqlFunction:
    """A function of CREATE FUNCTION. `definition` is its text after the name, as written: Spark reads it."""

    name: str
    definition: str
    deterministic: bool = True
    """False where its expression has another value on every call, or on every day."""
    uses: tuple[str, ...] = ()
    """The registered and stored functions that it calls, lower case."""


@dataclass(frozen=True)
class DeclaredDestination:
    """What CREATE DESTINATION says. `type` is in upper case; option values stay as they were written, so that what
    `${NAME}` stands for is never stored."""

    name: str
    type: str
    options: tuple[tuple[str, str], ...] = ()
    paused: bool = False
    script: Script | None = None
    """Of a trigger."""
    token: str = ""
    """By which a target outside of the warehouse knows it: unlike its name never given twice."""


@dataclass(frozen=True)
class DeclaredSource:
    """What CREATE SOURCE says. `type` is in lower case; option values stay as they were written, so that what `${NAME}`
    stands for is never stored."""

    name: str
    type: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Capture:
    """What CREATE CAPTURE says: table `table` gets the changes of `relation` at `source`."""

    name: str
    source: str
    table: str
    method: CaptureMethod
    when: When
    relation: str | None = None
    """As it was written, such as `public.orders`; None where the method is VIEW."""
    columns: tuple[CapturedColumn, ...] = ()
    """For every column of the table that the capture fills, the source's column; never empty."""
    where: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    tables: tuple[str, ...] = ()
    """Of a capture that joins tables that stay at their sources (SWEEP): these, in lower case."""


@dataclass(frozen=True)
class CaptureStatus:
    """The moving part of a capture. `state` is ACTIVE, PAUSED or FAILED."""

    position: str = ""
    """JSON text of the method's own; empty before the first tick."""
    ticks: int = 0
    """How often the status has been written: what it is compared by, so that no tick is counted twice."""
    state: str = "ACTIVE"
    error: str = ""
    failures: int = 0
    """In a row."""
    rows: int = 0
    """How many rows the capture has changed."""
    version: int = 0
    """The newest commit that it has made; 0 before the first."""
    last: datetime | None = None
    """When its last tick that succeeded ended."""


@dataclass(frozen=True)
class CatalogState:
    """All definitions; DDL is a pure function from one state to the next."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    queries: Mapping[str, ContinuousQuery] = field(default_factory=dict)
    next_id: int = 1
    functions: Mapping[str, SqlFunction] = field(default_factory=dict)
    groups: Mapping[str, QueryGroup] = field(default_factory=dict)
    destinations: Mapping[str, DeclaredDestination] = field(default_factory=dict)
    sources: Mapping[str, DeclaredSource] = field(default_factory=dict)
    captures: Mapping[str, Capture] = field(default_factory=dict)
    edition: int | None = field(default=None, compare=False)
    """Of the definitions in the catalog that this was derived from: what is derived from older ones is not written."""
