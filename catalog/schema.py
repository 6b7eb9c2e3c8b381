"""The tables of the catalog database.

Times are UTC microseconds since 1970 in BIGINT columns: the same exact values in every database. Definitions are
JSON documents (catalog/documents.py); change rows are Arrow IPC streams (catalog/inline.py).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cq_engine.core.errors import ConflictError

__all__ = ["metadata", "stale"]

_PREFIX = "cq_"
metadata = sa.MetaData()
_Big = sa.BigInteger


def _table(name: str, *columns: Any, **options: Any) -> sa.Table:
    return sa.Table(_PREFIX + name, metadata, *columns, **options)


meta = _table(
    "meta", sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
)

lease = _table(
    "lease",
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", _Big, nullable=False),
    sa.Column(
        "process", _Big, nullable=False, server_default="0"
    ),  # the holder's number; 0 where nobody holds it
)

commits = _table(
    "commits",
    sa.Column("version", _Big, primary_key=True, autoincrement=False),
    sa.Column("committed", _Big, nullable=False),
)

cascades = _table(
    "cascades",  # commits that triggers have made: how many triggers lie between each and a commit of a user
    sa.Column("version", _Big, primary_key=True, autoincrement=False),
    sa.Column("depth", _Big, nullable=False),
)

GROUP = "template"
"""What a query group is called in `definitions`."""

definitions = _table(
    "definitions",
    sa.Column(
        "kind", sa.Text, primary_key=True
    ),  # table, query, function, destination, source, capture or GROUP
    sa.Column("name", sa.Text, primary_key=True),  # lower case
    sa.Column("document", sa.Text, nullable=False),
)

statuses = _table(
    "statuses",
    sa.Column("query", sa.Text, primary_key=True),
    sa.Column("position", _Big, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("last_refresh", _Big),
)

cursors = _table(
    "cursors",
    sa.Column("query", sa.Text, primary_key=True),
    sa.Column("destination", sa.Text, primary_key=True),
    sa.Column("version", _Big, nullable=False),
    sa.Column("sequence", _Big, nullable=False),
    sa.Column("failures", _Big, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("rows", _Big, nullable=False, server_default="0"),
    sa.Column("dead", _Big, nullable=False, server_default="0"),
)

captures = _table(
    "captures",
    sa.Column("capture", sa.Text, primary_key=True),  # lower case
    sa.Column("position", sa.Text, nullable=False),
    sa.Column("ticks", _Big, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("failures", _Big, nullable=False),
    sa.Column("rows", _Big, nullable=False),
    sa.Column("version", _Big, nullable=False),
    sa.Column("last", _Big),
)

queue_positions = _table(
    "queue_positions",  # up to where a group of consumers has been given the messages of a query
    sa.Column("destination", sa.Text, primary_key=True),
    sa.Column("consumers", sa.Text, primary_key=True),  # the group's name
    sa.Column("query", sa.Text, primary_key=True),
    sa.Column("version", _Big, nullable=False),
    sa.Column("sequence", _Big, nullable=False),
    sa.Column("finished", _Big, nullable=False),
    sa.Column("dead", _Big, nullable=False),
)

queue_messages = _table(
    "queue_messages",  # those up to there that are not finished: in flight, to be given again, or passed over
    sa.Column("destination", sa.Text, primary_key=True),
    sa.Column("consumers", sa.Text, primary_key=True),
    sa.Column("query", sa.Text, primary_key=True),
    sa.Column("version", _Big, primary_key=True, autoincrement=False),
    sa.Column("sequence", _Big, primary_key=True, autoincrement=False),
    sa.Column("key", _Big, nullable=False),  # a hash of the result key
    sa.Column("due", _Big, nullable=False),  # when it may be given (again)
    sa.Column("attempt", _Big, nullable=False),
    sa.Column("consumer", sa.Text, nullable=False),  # who has it; empty where nobody has
    sa.Column("receipt", _Big, nullable=False),  # of the time that it was given; 0 where it was taken back
)

refreshes = _table(
    "refreshes",
    sa.Column("id", _Big().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("query", sa.Text, nullable=False, index=True),
    sa.Column("from_version", _Big, nullable=False),
    sa.Column("to_version", _Big, nullable=False),
    sa.Column("inserted", _Big, nullable=False),
    sa.Column("deleted", _Big, nullable=False),
    sa.Column("updated", _Big, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("finished", _Big, nullable=False),
)

storage = _table(
    "storage",
    sa.Column("table_id", _Big, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("floor", _Big, nullable=False),
    sa.Column("next_row_id", _Big, nullable=False),
    sa.Column("published_table", _Big, nullable=False),
    sa.Column("published_log", _Big, nullable=False),
    sa.Column("dropped", sa.Boolean, nullable=False),
)

snapshots = _table(
    "snapshots",
    sa.Column("table_id", _Big, primary_key=True, autoincrement=False),
    sa.Column("version", _Big, primary_key=True, autoincrement=False),
)

files = _table(
    "files",
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("table_id", _Big, nullable=False, index=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("added_version", _Big, nullable=False),
    sa.Column("removed_version", _Big),
)

change_sets = _table(
    "change_sets",
    sa.Column("id", _Big, primary_key=True, autoincrement=False),
    sa.Column("table_id", _Big, nullable=False, index=True),
    sa.Column("low", _Big, nullable=False),
    sa.Column("high", _Big, nullable=False),
    sa.Column("rows", _Big, nullable=False),
    sa.Column("kinds", sa.Text, nullable=False),
    sa.Column("insert_only", sa.Boolean, nullable=False),
    sa.Column("inline", sa.Boolean, nullable=False),
    sa.Column("files", sa.Text, nullable=False),
)

journal = _table(
    "journal",  # what each write changed of what processes keep in memory (catalog/journal.py)
    sa.Column(
        "generation", _Big().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False
    ),
    sa.Column("document", sa.Text, nullable=False),
)

inline = _table(
    "inline",
    sa.Column(
        "id",
        _Big,
        sa.ForeignKey(change_sets.c.id, ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

processes = _table(
    "processes",  # those that have the warehouse open to write
    sa.Column("id", _Big().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("holder", sa.Text, nullable=False),  # JSON: who it is
    sa.Column("heartbeat", _Big, nullable=False),
    sa.Column("held", _Big, nullable=False),  # it reads, and will read, no version below this one
    sa.Column("clear", _Big, nullable=False),  # what it reads it has begun to read after this moment
    sa.Column("transactions", _Big, nullable=False),  # those that are open
    sqlite_autoincrement=True,  # a number is never given twice
)

callbacks = _table(
    "callbacks",
    sa.Column("name", sa.Text, primary_key=True),  # lower case
    sa.Column("process", _Big, nullable=False),
)

requests = _table(
    "requests",  # what processes without the duties ask of the one that has them
    sa.Column("id", _Big().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("process", _Big, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("argument", sa.Text, nullable=False),  # JSON
    sa.Column(
        "taken", _Big, nullable=False
    ),  # the epoch of the holder that has begun with it; 0 where none has
    sa.Column("answer", sa.Text),  # JSON
    sqlite_autoincrement=True,
)

attempts = _table(
    "attempts",
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("process", _Big, nullable=False, server_default="0"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("started", _Big, nullable=False),
)


doomed = _table(
    "doomed",  # files, and directories (with a / at the end), that nothing refers to or will refer to any more
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("since", _Big, nullable=False),
)


directories = _table(
    "directories",  # names without an id that tables have had: none of them is given a second time
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),  # lower case
)


def stale(what: str) -> ConflictError:
    """A write that was computed from what the database does not hold any more."""
    return ConflictError(
        f"{what} is not what this process knew",
        detail="another write came in between; nothing of this one was stored",
        hint="repeat it",
    )
