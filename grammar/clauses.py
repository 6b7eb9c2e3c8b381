"""Clauses of statements as frozen records, those that definitions in the catalog keep among them. Only text stands in them."""

from __future__ import annotations

from dataclasses import dataclass, field

Options = tuple[tuple[str, str], ...]
"""`WITH (...)` / `OPTIONS (...)`: lower-case names with their values as text, in the order written."""


# ---------------------------------------------------------------- parts of CREATE CONTINUOUS QUERY


@dataclass(frozen=True)
class OnCommit:
    """ON COMMIT: asynchronously after every commit that changes a source."""


@dataclass(frozen=True)
class EveryInterval:
    """EVERY INTERVAL 'count' unit; `unit` is SECOND, MINUTE, HOUR, DAY, WEEK or MONTH."""

    count: int
    unit: str


@dataclass(frozen=True)
class StartWithPeriod:
    """START 'timestamp' WITH PERIOD count unit; `start` as written."""

    start: str
    count: int
    unit: str


@dataclass(frozen=True)
class Cron:
    """CRON 'm h dom mon dow'."""

    expression: str


@dataclass(frozen=True)
class OnDml:
    """ON INSERT OR UPDATE TO t, ...; `events` is a subset of INSERT, DELETE, UPDATE."""

    events: tuple[str, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True)
class OnDemand:
    """ON DEMAND: only REFRESH CONTINUOUS QUERY and `engine.refresh` move the query."""


When = OnCommit | EveryInterval | StartWithPeriod | Cron | OnDml | OnDemand


@dataclass(frozen=True)
class DestinationRef:
    """[TABLE | CALLBACK | QUEUE | TRIGGER | WEBHOOK] name; `kind` is None for a bare name."""

    name: str
    kind: str | None = None


@dataclass(frozen=True)
class StartFrom:
    """START FROM NOW | SNAPSHOT | VERSION n; `point` is NOW, SNAPSHOT or VERSION."""

    point: str = "NOW"
    version: int | None = None


# ---------------------------------------------------------------- parts of CREATE TABLE


@dataclass(frozen=True)
class RemoteRelation:
    """REMOTE FROM source TABLE 'relation' [USING LOG [WITH (...)]]: what a table stands for that stays at its source."""

    source: str
    relation: str
    """As the source's SQL has it, such as `public.orders`."""
    log: bool = False
    """USING LOG: changes may be told by a log, so that continuous queries can be maintained."""
    options: Options = ()
    """Of the log."""


@dataclass(frozen=True)
class ColumnSpec:
    """A column; `type` is Spark DDL text such as `DECIMAL(10,2)`."""

    name: str
    type: str
    nullable: bool = True
    comment: str | None = None


@dataclass(frozen=True)
class PrimaryKeySpec:
    columns: tuple[str, ...]
    enforced: bool = True
    rely: bool = False
    name: str | None = None


@dataclass(frozen=True)
class ForeignKeySpec:
    columns: tuple[str, ...]
    references: str
    ref_columns: tuple[str, ...] = ()
    name: str | None = None
    enforced: bool = False
    rely: bool = False


# ---------------------------------------------------------------- parts of destinations and captures


@dataclass(frozen=True)
class Script:
    """AS BEGIN statement; ... END [WHEN (condition)] [FOR EACH ROW], as they were written. The offsets say where in the
    statement's text `text` and `condition` begin."""

    text: str
    condition: str = ""
    each_row: bool = False
    offset: int = field(default=0, compare=False)
    condition_offset: int = field(default=0, compare=False)


@dataclass(frozen=True)
class CaptureMethod:
    """USING kind (...) [WITH (...)]: how a capture finds what has changed.

    `kind` is TIMESTAMP, CHECKSUM, COPY, RANGES, VIEW or LOG. `column` is the timestamp or checksum column, `deleted` the
    delete flag of TIMESTAMP, `query` the text of VIEW, `checksum` whether RANGES compares checksums. What RANGES has in
    brackets besides (rows = 1000) is among the options.
    """

    kind: str
    column: str | None = None
    deleted: str | None = None
    query: str | None = None
    checksum: bool = False
    options: Options = ()


@dataclass(frozen=True)
class CapturedColumn:
    """A column of the source's table, and the name of the table's column that it fills."""

    name: str
    target: str
