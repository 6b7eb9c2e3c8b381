"""The adversary's long run: worlds of random tables, histories and queries, until so many checks are done.

    python tests/adversary/run.py --seed 1 --checks 100000

A world is a seed and a number; `--world 17 --only 3` plays only that one, with only its fourth query.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.sql import SparkSession

from cq_engine.launch.session import spark_session
from tests.adversary.episode import Episode
from tests.adversary.twists import TWISTS
from tests.adversary.watched import Tally
from tests.adversary.world import make_world

__all__ = ["main", "play", "report"]


def play(
    spark: SparkSession, seed: str, tally: Tally, queries: int, versions: int, directory: Path,
    only: set[int] | None = None, twists: Collection[str] | None = None,
) -> None:  # fmt: skip
    """One world from its seed to its end; its warehouse goes, the scripts of its faults stay in `directory`."""
    place = Path(tempfile.mkdtemp(prefix="world_", dir=directory))
    world = make_world(seed, queries, versions, twists=twists)
    Episode(world, spark, place / "warehouse", tally, only).run()
    shutil.rmtree(place / "warehouse", ignore_errors=True)
    if not any(place.iterdir()):
        place.rmdir()


def report(tally: Tally, seconds: float) -> str:
    """What has been done, as text."""
    refused = sum(tally.refused.values())
    created = sum(tally.counts[v] for v in ("INCREMENTAL", "AFFECTED KEYS", "FULL"))
    lines = [
        (
            f"{tally.checks} checks in {seconds:.0f} s ({60 * tally.checks / max(seconds, 1):.0f} per minute),"
            f" {len(tally.faults)} faults, {refused} of {created + refused} queries refused,"
            f" {len(tally.differences)} differences of dialects"
        )
    ]
    for title, counts in (
        ("done", tally.counts),
        ("refused", tally.refused),
        ("shapes", tally.shapes),
        ("paths", tally.paths),
    ):
        lines.append(f"{title}: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    return "\n".join([*lines, *(f"difference: {d}" for d in tally.differences)])


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seed", default="1")
    options.add_argument("--checks", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=float("inf"), help="no further world after so long")
    options.add_argument("--world", type=int, help="only this one")
    options.add_argument("--first", type=int, default=0, help="the first world's number")
    options.add_argument("--only", type=int, nargs="*", help="only these of its queries")
    options.add_argument(
        "--twists", nargs="*", choices=TWISTS, help="what the worlds have, not by their seeds"
    )
    options.add_argument("--queries", type=int, default=10)
    options.add_argument("--versions", type=int, default=40)
    options.add_argument(
        "--keep", type=Path, default=Path(tempfile.gettempdir()), help="where scripts of faults go"
    )
    given = options.parse_args()
    os.environ.setdefault(
        "SPARK_SUBMIT_OPTS",
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=512m -XX:ReservedCodeCacheSize=256m",
    )
    os.environ["CQ_CLASS_ARCHIVE"] = "off"
    spark = spark_session({"spark.master": "local[2]", "spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("OFF")
    tally, begun = Tally(), time.monotonic()
    number = given.first if given.world is None else given.world
    directory = Path(tempfile.mkdtemp(prefix="adversary_", dir=given.keep))
    while True:
        play(
            spark,
            f"{given.seed}/{number}",
            tally,
            given.queries,
            given.versions,
            directory,
            set(given.only) if given.only else None,
            given.twists,
        )
        number += 1
        seconds = time.monotonic() - begun
        print(
            f"world {number - 1}: {tally.checks} checks, {seconds:.0f} s, {len(tally.faults)} faults",
            flush=True,
        )
        if given.world is not None or tally.checks >= given.checks or seconds > given.seconds:
            break
    print(report(tally, seconds))
    spark.stop()
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
