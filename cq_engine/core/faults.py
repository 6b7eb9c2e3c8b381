"""Named fault points: places at which a test kills the process, or lets something fail, to see that nothing is lost.

`CQ_FAULT=name` in the environment kills the process (SIGKILL) when the point is first reached, `CQ_FAULT=name:3` when
it is reached for the third time. Other faults put themselves in the place of `point` (tests/faults).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

__all__ = ["POINTS", "point"]

POINTS: dict[str, str] = {
    "open.migrating": "inside the transaction that makes the catalog or brings an older one up to date",
    "open.migrated": "the catalog is there and of this version, its lease is not taken",
    "open.leased": "the lease is taken, what a dead process left is still there",
    "file.begin": "before the driver writes a data file",
    "file.written": "a data file is written, by whomever, not yet durable, and nobody knows of it",
    "catalog.begin": "before a transaction of the catalog",
    "catalog.before_commit": "inside a transaction of the catalog, before it commits",
    "catalog.after_commit": "a transaction of the catalog is durable, memory does not know it yet",
    "commit.begin": "before anything of a commit is written",
    "commit.staged": "data files are written, the catalog transaction has not begun",
    "commit.before_catalog": "all is said that the catalog transaction of a commit is to write",
    "commit.after_catalog": "the catalog transaction of a commit is durable",
    "create.computed": "what a new query starts from is computed, nothing of it is durable",
    "create.after_catalog": "a new query is durable with what it starts from",
    "refresh.begin": "a refresh has chosen its interval",
    "refresh.computed": "the delta is computed, nothing of it is durable",
    "refresh.before_catalog": "all is said that the catalog transaction of a refresh is to write",
    "refresh.after_catalog": "the delta and the position are durable, nothing is delivered",
    "mesh.chunk": "pages of a table have met all keys in the window of a mesh join, nothing of it is durable",
    "sweep.loaded": "the rows of all sources are read for a join that is computed as a whole, nothing of it is durable",
    "sweep.gathered": "sweeps have gathered the rows of a delta, which is not evaluated",
    "sweep.evaluated": "the delta of a join of remote tables is evaluated, nothing of it is durable",
    "deliver.begin": "a destination has read its batch, nothing is delivered",
    "deliver.before_cursor": "a batch is delivered, its cursor is not yet durable",
    "deliver.after_cursor": "a batch is delivered and its cursor is durable",
    "publish.begin": "before pending changes are published to Delta",
    "publish.staged": "pending changes are written to files, the catalog does not know them yet",
    "publish.file": "a file for Delta is written, not yet in a Delta commit",
    "publish.commit": "before a Delta commit",
    "publish.committed": "a Delta commit is done, the catalog does not know it yet",
    "compact.staged": "a compaction has written its files, the catalog transaction has not begun",
    "compact.after_catalog": "a compaction is durable, the replaced files are still there",
    "vacuum.after_catalog": "old versions are forgotten, their files are still there",
    "vacuum.remove": "before a file or directory is removed that nothing refers to",
    "vacuum.files": "these files are removed, the catalog still lists them",
    "cache.write": "before a column is copied for look-ups",
    "archive.written": "the archive of Spark's classes is written under a temporary name",
}
_hits: Counter[str] = Counter()


def point(name: str, file: Path | None = None) -> None:  # noqa: ARG001 - for what takes its place
    """Marks the fault point `name`, a key of POINTS; `file` is the one that it speaks of."""
    wanted = os.environ.get("CQ_FAULT")
    if wanted is None:
        return
    target, _, count = wanted.partition(":")
    if target == name:
        _hits[name] += 1
        if _hits[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
