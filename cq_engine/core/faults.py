"""Named fault points: places at which a test kills the process to see that nothing is lost. Off by default.

`CQ_FAULT=name` in the environment kills the process (SIGKILL) when the point is first reached, `CQ_FAULT=name:3` when
it is reached for the third time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

__all__ = ["POINTS", "point"]

POINTS: dict[str, str] = {
    "commit.begin": "before anything of a commit is written",
    "commit.staged": "data files are written, the catalog transaction has not begun",
    "commit.before_catalog": "inside the catalog transaction of a commit, before it commits",
    "commit.after_catalog": "the catalog transaction of a commit is durable",
    "catalog.before_commit": "inside every catalog transaction that changes what is known, before it commits",
    "catalog.after_commit": "such a transaction is durable, memory does not know it yet",
    "create.computed": "what a new query starts from is computed, nothing of it is durable",
    "create.after_catalog": "a new query is durable with what it starts from",
    "refresh.begin": "a refresh has chosen its interval",
    "refresh.computed": "the delta is computed, nothing of it is durable",
    "refresh.before_catalog": "inside the catalog transaction of a refresh, before it commits",
    "refresh.after_catalog": "the delta and the position are durable, nothing is delivered",
    "deliver.begin": "a destination has read its batch, nothing is delivered",
    "deliver.before_cursor": "a batch is delivered, its cursor is not yet durable",
    "deliver.after_cursor": "a batch is delivered and its cursor is durable",
    "publish.begin": "before pending changes are published to Delta",
    "publish.staged": "pending changes are written to files, the catalog does not know them yet",
    "publish.file": "a file for Delta is written, not yet in a Delta commit",
    "publish.committed": "a Delta commit is done, the catalog does not know it yet",
    "compact.staged": "a compaction has written its files, the catalog transaction has not begun",
    "compact.after_catalog": "a compaction is durable, the replaced files are still there",
    "vacuum.after_catalog": "old versions are forgotten, their files are still there",
    "vacuum.files": "these files are removed, the catalog still lists them",
}
_hits: Counter[str] = Counter()


def point(name: str) -> None:
    """Marks the fault point `name`, a key of POINTS."""
    wanted = os.environ.get("CQ_FAULT")
    if wanted is None:
        return
    target, _, count = wanted.partition(":")
    if target == name:
        _hits[name] += 1
        if _hits[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
