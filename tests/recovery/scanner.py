"""A process that refreshes a query by a mesh join and is killed at a page of its scan: `python -m tests.recovery.scanner warehouse`, with
CQ_FAULT set."""

from __future__ import annotations

import sys
from typing import Any

import cq_engine
from cq_engine.core.limits import Limits
from tests.recovery.worker import borrowed

OPTIONS: dict[str, Any] = {
    "scheduler": False,
    "conf": {"maintenance": "manual"},
    "limits": Limits(small_rows=-1, row_group_rows=20, snapshot_file_rows=100),
}
"""Tables are huge, and have pages of twenty rows."""

if __name__ == "__main__":
    with cq_engine.connect(sys.argv[1], spark=borrowed(), **OPTIONS) as engine:
        engine.refresh("q")
