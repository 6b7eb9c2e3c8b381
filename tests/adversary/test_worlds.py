"""The engine against the adversary: a world, the same in every run.

CQ_ADVERSARY_SEED=7 gives another one, CQ_ADVERSARY_WORLDS=50 more of them; `run.py` is the long run.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from tests.adversary.run import play, report
from tests.adversary.twists import TWISTS
from tests.adversary.watched import Tally

SEED = os.environ.get("CQ_ADVERSARY_SEED", "ci")
WORLDS = int(os.environ.get("CQ_ADVERSARY_WORLDS", "1"))


def test_engine(spark: SparkSession, tmp_path: Path) -> None:
    """Tables, commits, limits, reopening and all: the engine against three oracles."""
    tally = Tally()
    for world in range(WORLDS):
        twists = None if world else TWISTS
        play(spark, f"{SEED}/{world}", tally, queries=2, versions=4, directory=tmp_path, twists=twists)
    print(f"\n{report(tally, 1)}")
    assert not tally.faults, "\n\n".join(tally.faults)
    created = sum(tally.counts[v] for v in ("INCREMENTAL", "AFFECTED KEYS", "FULL"))
    assert sum(tally.refused.values()) <= created / 3
