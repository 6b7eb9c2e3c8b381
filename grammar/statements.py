"""The statements of the language as frozen records: what `parse` gives and `format` prints.

Only text stands in them, no plan and no catalog object. Names are unquoted. The defining query and DML keep the
text that was written; sqlglot reads it later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cq_engine.grammar.clauses import (
    CapturedColumn,
    CaptureMethod,
    ColumnSpec,
    DestinationRef,
    EveryInterval,
    ForeignKeySpec,
    OnCommit,
    Options,
    PrimaryKeySpec,
    RemoteRelation,
    Script,
    StartFrom,
    When,
)


@dataclass(frozen=True)
class Statement:
    """Base of all statements."""


@dataclass(frozen=True)
class CreateContinuousQuery(Statement):
    name: str
    query: str
    primary_key: tuple[str, ...] | None = None
    mode: str = "TRANSACTIONAL"
    markers: tuple[str, ...] = ("I", "D", "U")
    when: When = OnCommit()
    destinations: tuple[DestinationRef, ...] = ()
    start: StartFrom = StartFrom()
    options: Options = ()
    or_replace: bool = False
    if_not_exists: bool = False
    query_offset: int = field(default=0, compare=False)
    """Where `query` starts in the statement's text, so that errors inside it can be placed."""
    consistency: str | None = None
    """COMPLETE, STRONG or CONVERGENT, of a query over tables that stay at their sources."""


@dataclass(frozen=True)
class AlterContinuousQuery(Statement):
    """`action`: PAUSE, RESUME, SET or AS. SET carries what is to change; None leaves a property alone."""

    name: str
    action: str
    start: StartFrom | None = None
    when: When | None = None
    markers: tuple[str, ...] | None = None
    destinations: tuple[DestinationRef, ...] | None = None
    options: Options = ()
    query: str | None = None
    """The new defining query of AS."""
    query_offset: int = field(default=0, compare=False)
    """Where `query` starts in the statement's text; 0 without a query."""


@dataclass(frozen=True)
class RefreshContinuousQuery(Statement):
    name: str


@dataclass(frozen=True)
class DropContinuousQuery(Statement):
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class Follow(Statement):
    """FOLLOW name [FROM VERSION n | SNAPSHOT]."""

    name: str
    start: StartFrom = StartFrom()


@dataclass(frozen=True)
class CreateDestination(Statement):
    """CREATE DESTINATION name TYPE type [script] [WITH (...)]; `type` in upper case."""

    name: str
    type: str
    options: Options = ()
    if_not_exists: bool = False
    script: Script | None = None


@dataclass(frozen=True)
class AlterDestination(Statement):
    """`action`: PAUSE, RESUME, SET (with `options`), REPLAY (from `version` on) or SKIP (up to `version`), these two for
    `query`, or for the only one that delivers there; DROP GROUP (`group`) of a queue."""

    name: str
    action: str
    options: Options = ()
    query: str | None = None
    version: int | None = None
    group: str | None = None


@dataclass(frozen=True)
class DropDestination(Statement):
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class CreateSource(Statement):
    """CREATE SOURCE name TYPE type [WITH (...)]; `type` in lower case."""

    name: str
    type: str
    options: Options = ()
    if_not_exists: bool = False


@dataclass(frozen=True)
class AlterSource(Statement):
    """ALTER SOURCE name SET WITH (...)."""

    name: str
    options: Options = ()


@dataclass(frozen=True)
class DropSource(Statement):
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class CreateCapture(Statement):
    """CREATE CAPTURE name INTO table FROM source [TABLE 'relation'] [(column [AS name], ...)] [WHERE '...'] USING ...;
    `relation` is None where the method is VIEW, `columns` is empty for all columns of the table by their names."""

    name: str
    table: str
    source: str
    method: CaptureMethod
    relation: str | None = None
    columns: tuple[CapturedColumn, ...] = ()
    where: str | None = None
    """In the source's SQL."""
    when: When = EveryInterval(1, "MINUTE")
    options: Options = ()
    if_not_exists: bool = False


@dataclass(frozen=True)
class AlterCapture(Statement):
    """`action`: PAUSE, RESUME or SET. SET carries what is to change; None, or no options, leaves it alone."""

    name: str
    action: str
    when: When | None = None
    options: Options = ()


@dataclass(frozen=True)
class RefreshCapture(Statement):
    name: str


@dataclass(frozen=True)
class DropCapture(Statement):
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class AdviseCapture(Statement):
    """ADVISE [VERBOSE] CAPTURE FROM source TABLE 'relation'."""

    source: str
    relation: str
    verbose: bool = False


@dataclass(frozen=True)
class Dequeue(Statement):
    """DEQUEUE [n] FROM queue [GROUP 'group'] [WAIT n unit]; `wait` is a number and a unit such as SECOND."""

    queue: str
    count: int = 1
    group: str | None = None
    wait: tuple[int, str] | None = None


@dataclass(frozen=True)
class Ack(Statement):
    """ACK queue [GROUP 'group'] UP TO message."""

    queue: str
    message: str
    group: str | None = None


@dataclass(frozen=True)
class Reject(Statement):
    """REJECT queue [GROUP 'group'] MESSAGE message [REQUEUE]."""

    queue: str
    message: str
    group: str | None = None
    requeue: bool = False


@dataclass(frozen=True)
class CreateTable(Statement):
    name: str
    columns: tuple[ColumnSpec, ...] = ()
    primary_key: PrimaryKeySpec | None = None
    foreign_keys: tuple[ForeignKeySpec, ...] = ()
    cluster_by: tuple[str, ...] = ()
    options: Options = ()
    query: str | None = None
    """CREATE TABLE ... AS SELECT."""
    if_not_exists: bool = False
    comment: str | None = None
    query_offset: int = field(default=0, compare=False)
    """Where `query` starts in the statement's text; 0 without a query."""
    delta: str | None = None
    """Where the Delta Lake table of CREATE TABLE ... FROM DELTA is, which is captured from then on."""
    when: When | None = None
    """How often it is looked at, where that is said."""
    snapshot: bool = True
    """False: WITHOUT SNAPSHOT, only the changes of its rows are kept."""
    remote: RemoteRelation | None = None
    """REMOTE FROM ...: the rows stay at a source."""


@dataclass(frozen=True)
class AlterTable(Statement):
    """One change: `action` is ADD COLUMNS, ADD FOREIGN KEY, CLUSTER BY or RENAME."""

    name: str
    action: str
    columns: tuple[ColumnSpec, ...] = ()
    foreign_key: ForeignKeySpec | None = None
    cluster_by: tuple[str, ...] = ()
    new_name: str | None = None


@dataclass(frozen=True)
class DropTable(Statement):
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class CompactTable(Statement):
    name: str


@dataclass(frozen=True)
class Vacuum(Statement):
    """VACUUM [name] [RETAIN n unit]: `name` is a table or a continuous query; `retain` is as in '36 HOUR'."""

    name: str | None = None
    retain: str | None = None


@dataclass(frozen=True)
class CheckConstraints(Statement):
    """CHECK CONSTRAINTS [ON table]: verifies what RELY relies on."""

    table: str | None = None


@dataclass(frozen=True)
class CreateFunction(Statement):
    """CREATE FUNCTION name(parameters) [RETURNS type] ... RETURN expression; Spark reads `definition`, from the bracket
    on."""

    name: str
    definition: str
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropFunction(Statement):
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class Dml(Statement):
    """INSERT, UPDATE, DELETE, MERGE or TRUNCATE, as written; sqlglot reads `text`."""

    kind: str
    text: str


@dataclass(frozen=True)
class CopyInto(Statement):
    """COPY INTO table [(columns)] FROM 'path' [FORMAT csv|json|parquet] [OPTIONS (...)]."""

    table: str
    path: str
    format: str | None = None
    columns: tuple[str, ...] = ()
    options: Options = ()


@dataclass(frozen=True)
class Begin(Statement):
    pass


@dataclass(frozen=True)
class Commit(Statement):
    pass


@dataclass(frozen=True)
class Rollback(Statement):
    pass


@dataclass(frozen=True)
class Query(Statement):
    """A plain SELECT / WITH / VALUES, as written, with VERSION AS OF and CHANGES clauses still in it."""

    text: str


@dataclass(frozen=True)
class Show(Statement):
    """SHOW TABLES | CONTINUOUS QUERIES | DESTINATIONS | SOURCES | CAPTURES | FUNCTIONS | PROCESSES | REFRESHES [FOR query]."""

    what: str
    name: str | None = None


@dataclass(frozen=True)
class Describe(Statement):
    """DESCRIBE [TABLE | CONTINUOUS QUERY | DESTINATION | SOURCE | CAPTURE] name; `kind` is these words, or None."""

    name: str
    kind: str | None = None


@dataclass(frozen=True)
class Explain(Statement):
    """EXPLAIN [ANALYZE] [(FORMAT format)] CONTINUOUS QUERY name, or EXPLAIN of a statement's text.

    `format` is TEXT, JSON or MERMAID.
    """

    name: str | None = None
    text: str | None = None
    analyze: bool = False
    format: str = "TEXT"


@dataclass(frozen=True)
class SetOption(Statement):
    """SET name = value (a session option of the engine or of Spark)."""

    name: str
    value: str
