"""Work that grows, on a standalone cluster: the driver's memory and the tasks for 0.1, 1 and 10 GB.

    python benchmarks/growth.py                    # 0.1 and 1 GB
    python benchmarks/growth.py --gigabytes 0.1 1 10 --keep /a/large/disk

One table with a key, numbers, and a text that does not compress, so that its Parquet files have about the size that is named. For
each size, with default settings: COPY of the files, an UPDATE of every 50th row, the refresh over it of a query that
has a third of the rows, and a FULL recomputation of an aggregate with a group for each hundred rows. For each of them, each in a driver of its own: seconds, tasks
of the largest stage (by Spark's event log), and the most memory that the driver had, its Python and its Java. The cluster has two workers of one core each.
One JSON line per figure goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from frame import UNDISTURBED, Figure, arguments, canvas, driver, driver_arguments, ratio, run

import cq_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import itertools

from tests.cluster import DRIVER, cluster

NAME = "growth"
ROW_BYTES = 613
"""Of a row in a Parquet file, about: 600 hexadecimal digits, which the codec leaves as they are."""
FILE_ROWS = 500_000
GROUP_ROWS = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    if options.inside:
        for figure in _inside(options):
            print(json.dumps(figure), flush=True)
        return 0
    options.scales = [0]
    return run(NAME, options, lambda place, _: measure(place, options), conclude=compared, draw=plot)


def measure(directory: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Every size, each on executors of its own."""
    for size in sorted(options.gigabytes):
        place = (options.keep or directory) / f"{size:g}"
        place.mkdir()
        _child(place, "generate", "local[2]", size)
        with cluster(place, 2, memory="3g") as made:
            for of in WORKS:
                for each in _child(place, of, made.url, size):
                    yield {"figure": "work", "gigabytes": size, **each}
        shutil.rmtree(place)


def compared(figures: Sequence[Figure]) -> Iterator[Figure]:
    """Each size beside the one before."""
    found = {(f["of"], f["gigabytes"]): f for f in figures if f["figure"] == "work"}
    sizes = sorted({size for _, size in found})
    for of in dict.fromkeys(of for of, _ in found):
        for small, large in itertools.pairwise(sizes):
            one, other = found[of, small], found[of, large]
            yield {
                "figure": "growth", "of": of, "gigabytes": [small, large],
                "ratio": ratio(other["python_mib"] + other["java_mib"], one["python_mib"] + one["java_mib"]),
                "times_as_many_tasks": ratio(other["tasks_of_largest_stage"], one["tasks_of_largest_stage"]),
            }  # fmt: skip


# ---------------------------------------------------------------- the driver, a process of its own


def _child(directory: Path, part: str, master: str, size: float) -> list[Figure]:
    return driver(__file__, part, master, directory, "--gigabytes", f"{size:g}")


def _inside(options: argparse.Namespace) -> Iterator[Figure]:
    of, files = options.inside, options.directory / "files"
    events = options.directory / f"events-{os.getpid()}"
    events.mkdir()
    conf = {
        "spark.master": options.master, "spark.driver.memory": "2g", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false",
        "spark.local.dir": str(options.directory / "spill"),
    }  # fmt: skip
    if not options.master.startswith("local"):
        conf |= {**DRIVER, "spark.executor.memory": "2g"}
    spark = cq_engine.spark_session(conf)
    rows = int(options.gigabytes[0] * 1e9 / ROW_BYTES)
    if of == "generate":
        text = ", ".join(f"sha2(concat(id, '-{number}'), 512)" for number in range(4))
        spark.range(0, rows, 1, max(2, rows // FILE_ROWS)).selectExpr(
            "id",
            f"id DIV {GROUP_ROWS} AS part",
            "CAST(hash(id) AS BIGINT) AS amount",
            f"concat({text}, substr(sha2(concat(id, 'e'), 512), 1, 88)) AS said",
        ).write.parquet(str(files))
        spark.stop()
        return
    spark.range(10**6).selectExpr("sum(hash(id))").collect()  # executors are there, and their classes
    with cq_engine.connect(
        options.directory / "warehouse", spark=spark, scheduler=False, conf=UNDISTURBED
    ) as engine:
        work = WORKS[of](engine, files)
        began = time.time()
        work()
        ended = time.time()
        python, java = _peaks()
    spark.stop()
    tasks = [count for at, count in _stages(events) if began <= at <= ended]
    yield {
        "of": of, "bytes": sum(path.stat().st_size for path in files.glob("*.parquet")), "rows": rows,
        "seconds": round(ended - began, 2), "tasks_of_largest_stage": max(tasks, default=0),
        "python_mib": python, "java_mib": java,
    }  # fmt: skip


def _copy(engine: cq_engine.Engine, files: Path) -> Callable[[], object]:
    engine.execute("CREATE TABLE wide (id BIGINT PRIMARY KEY, part BIGINT, amount BIGINT, said STRING)")
    return lambda: engine.execute(f"COPY INTO wide FROM '{files}' FORMAT parquet")


def _update(engine: cq_engine.Engine, _: Path) -> Callable[[], object]:
    for name, options, query in (
        ("third", "", "SELECT id, part, amount, said FROM wide WHERE pmod(amount, 3) = 0"),
        ("parts", "WITH (refresh = 'full')", "SELECT part, count(*) AS n, sum(amount) AS total FROM wide GROUP BY part"),
    ):  # fmt: skip
        engine.execute(
            f"CREATE CONTINUOUS QUERY {name} COMPUTE COMPRESSED DELTA ON DEMAND {options} AS {query}"
        )
    return lambda: engine.execute("UPDATE wide SET amount = amount + 1 WHERE id % 50 = 0")


WORKS: dict[str, Callable[[cq_engine.Engine, Path], Callable[[], object]]] = {
    "COPY": _copy,
    "UPDATE": _update,
    "catch-up": lambda engine, _: lambda: engine.refresh("third"),
    "FULL": lambda engine, _: lambda: engine.refresh("parts"),
}
"""What is measured, in this order, after what has to be there for it."""


def _stages(events: Path) -> Iterator[tuple[float, int]]:
    """When each stage began, in seconds since 1970, and its tasks."""
    for path in events.rglob("*"):
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError):
                    event = json.loads(line)
                    if event.get("Event") == "SparkListenerStageCompleted":
                        stage = event["Stage Info"]
                        yield stage["Submission Time"] / 1000, stage["Number of Tasks"]


def _peaks() -> tuple[int, int]:
    """MiB that this process, and all that it has started, have had at most."""
    parents: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError, KeyError, ValueError):
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            parents[int(fields["Pid"])] = int(fields["PPid"])
            peaks[int(fields["Pid"])] = int(fields["VmHWM"].split()[0]) // 1024
    own = os.getpid()
    family = {own}
    for _ in range(4):
        family |= {pid for pid, parent in parents.items() if parent in family}
    return peaks[own], sum(peaks.get(pid, 0) for pid in family - {own})


def plot(figures: Sequence[Figure], path: str) -> None:
    """Memory and tasks over the size."""
    drawn = canvas(2, shared=False)
    if drawn is None:
        return
    drawing, panels = drawn
    works = [f for f in figures if f["figure"] == "work"]
    for of in dict.fromkeys(f["of"] for f in works):
        own = [f for f in works if f["of"] == of]
        sizes = [f["gigabytes"] for f in own]
        panels[0].plot(sizes, [f["python_mib"] + f["java_mib"] for f in own], marker="o", label=of)
        panels[1].plot(sizes, [f["tasks_of_largest_stage"] for f in own], marker="o", label=of)
    panels[0].set(xscale="log", xlabel="GB", ylabel="MiB of the driver", ylim=(0, None))
    panels[1].set(xscale="log", yscale="log", xlabel="GB", ylabel="tasks of the largest stage")
    panels[0].legend()
    drawing.savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "", scales=())
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.1, 1], help="(default: 0.1 1)")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIRECTORY",
        help="of a disk with four times the room of the largest size",
    )
    driver_arguments(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
