"""The physical columns that the engine adds to rows, and the types of change rows.

Beside the table's own columns:

| column | type | where |
|---|---|---|
| `_row_id` | BIGINT | rows of a table without PRIMARY KEY: its hidden row identity |
| `_change_type` | STRING | change rows: insert, delete, update_preimage, update_postimage; of partial deltas also partial_update, upsert, partial_delete |
| `_commit_version` | BIGINT | change rows |
| `_commit_timestamp` | TIMESTAMP | change rows as they are published or shown; inside, the version stands for it |
| `_sequence` | BIGINT | rows of a query's delta log: unique and increasing per (query, version), one number per delta |
| `_refresh_time` | TIMESTAMP | rows of a query's delta log: when the refresh ran |
| `_member` | BIGINT | rows of a delta log that several queries share: the id of the one that they belong to |
"""

from __future__ import annotations

ROW_ID = "_row_id"
CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
SEQUENCE = "_sequence"
REFRESH_TIME = "_refresh_time"
MEMBER = "_member"

INSERT = "insert"
DELETE = "delete"
UPDATE_PREIMAGE = "update_preimage"
UPDATE_POSTIMAGE = "update_postimage"
"""The four change types of the Delta Lake change data feed."""
PARTIAL_UPDATE = "partial_update"
UPSERT = "upsert"
PARTIAL_DELETE = "partial_delete"
"""Change types of partial deltas (Jörg & Dessloch, Definition 1): a row of new values, a row of new values of which nobody
knows whether it was there before, and a key."""
DELETES = (DELETE, PARTIAL_DELETE)
"""The change types after which there is no row."""
UPDATE_PAIR = (UPDATE_PREIMAGE, UPDATE_POSTIMAGE)
"""The change types of an update whose rows are both known: the others have one row for a change."""
KINDS = {
    INSERT: frozenset({"INSERT"}),
    DELETE: frozenset({"DELETE"}),
    UPDATE_PREIMAGE: frozenset({"UPDATE"}),
    UPDATE_POSTIMAGE: frozenset({"UPDATE"}),
    PARTIAL_UPDATE: frozenset({"UPDATE"}),
    UPSERT: frozenset({"INSERT", "UPDATE"}),
    PARTIAL_DELETE: frozenset({"DELETE"}),
}
"""The kinds of change that each may be part of, as in ON INSERT OR UPDATE TO."""
EVENTS = frozenset({"INSERT", "DELETE", "UPDATE"})
