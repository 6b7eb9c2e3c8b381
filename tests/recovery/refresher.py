"""A process that refreshes one query and is killed meanwhile: `python refresher.py warehouse query`, with CQ_FAULT set."""

from __future__ import annotations

import sys

import cq_engine
from tests.recovery.worker import borrowed

if __name__ == "__main__":
    with cq_engine.connect(sys.argv[1], spark=borrowed(), scheduler=False) as engine:
        engine.refresh(sys.argv[2])
