"""What grows while commits go on, and what does not: memory, catalog, files, and the time of commits and refreshes.

    python benchmarks/soak.py                                   # 20 000 commits in a row
    python benchmarks/soak.py --commits 2000 --plot soak.png    # fewer of them
    python benchmarks/soak.py --minutes 60 --kill-seconds 120   # an hour, in which the process is killed

A process of its own commits without a pause, while five ON COMMIT queries (filter, join, aggregate, top-N, outer join
with an aggregate) are refreshed in the background and a callback gets the deltas of one. The tables keep their size: each
commit inserts, updates and deletes three orders, by `apply_changes` or, every tenth, by DML. Changes are merged, published
and, by a retention of two minutes (`--retention` where the machine is slow), forgotten all the time. After `--every`
commits that process drains, and a sample is taken from outside. With `--minutes` it is killed (SIGKILL) at random moments and opened again. At checks, and after every
kill, the deltas since the last check are compared with the difference of results from scratch.

One JSON line per sample and, at the end, one per series: the medians of its first and its last quarter, and whether they
are `flat`: the last is at most a quarter more. Seconds of CPU do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from frame import DeltaMismatchError, Figure, arguments, canvas, net, run
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits

NAME = "soak"
QUERIES = {
    "large": "SELECT id, customer, amount FROM orders WHERE amount > 90",
    "northern": "SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON o.customer = c.cid WHERE c.region = 1",
    "spent": "SELECT customer, sum(amount) AS spent, count(*) AS n FROM orders GROUP BY customer",
    "best": "SELECT id, region, amount FROM (SELECT o.id, c.region, o.amount, row_number() OVER "
    "(PARTITION BY c.region ORDER BY o.amount DESC, o.id) AS place FROM orders o JOIN customers c "
    "ON o.customer = c.cid) WHERE place <= 3",
    "idle": "SELECT c.cid, c.name, count(o.id) AS n FROM customers c LEFT JOIN orders o ON o.customer = c.cid "
    "GROUP BY c.cid, c.name",
}
LIMITS = Limits(
    vacuum_seconds=20, first_vacuum_seconds=20, grace_seconds=10, compact_rows=2_000, compact_long_rows=4_000
)
CUSTOMERS = 200
MIB = 2**20
SERIES = {
    "commit_seconds": "a commit",
    "refresh_seconds": "a refresh",
    "drain_seconds": "until all queries are up to date",
    "cpu_seconds": "CPU per commit with its refreshes",
    "python_mib": "memory of Python",
    "jvm_mib": "memory of the JVM",
    "threads": "threads",
    "open_files": "open files",
    "catalog_mib": "size of the catalog",
    "catalog_rows": "rows in the catalog",
    "files": "files of the warehouse",
    "warehouse_mib": "size of the warehouse",
    "scratch_mib": "size of temporary files",
}
SLACK = {
    "commit_seconds": 0.005,
    "threads": 5,
    "open_files": 10,
    "catalog_mib": 1,
    "warehouse_mib": 2,
    "scratch_mib": 8,
}
"""What counts for nothing, whatever the ratio."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:  # noqa: ARG001
    """Runs the benchmark and prints its JSON lines; it starts processes of its own, whatever `spark` is."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["--work"]:
        return Worker(Path(given[1]), json.loads(given[2])).run()
    options = _options(given)
    return run(NAME, options, lambda directory, _: measure(directory, options), conclude=conclude, draw=plot)


# ---------------------------------------------------------------- outside


def measure(directory: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """A sample after every `--every` commits of the process that commits."""
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    rng, started, done, kills, before = random.Random(options.seed), time.monotonic(), 0, 0, 0.0
    while True:
        child = _start(directory, options, done)
        kill = time.monotonic() + rng.uniform(0.5, 1.5) * options.kill_seconds if end else None
        try:
            assert child.stdout is not None
            for line in child.stdout:
                told = json.loads(line)
                used, done = _sample(directory, child.pid), told.pop("commits")
                seconds = used.pop("cpu") - before
                before += seconds
                told["cpu_seconds"] = round(seconds / options.every, 4) if seconds > 0 else None
                at = round(time.monotonic() - started, 1)
                yield {"figure": "sample", "at": at, "commits": done, "kills": kills, **told, **used}
                if kill is not None and time.monotonic() > kill:
                    time.sleep(rng.random())  # somewhere in the next commits
                    break
            else:
                if child.wait() != 0:
                    raise DeltaMismatchError(f"the process that commits ended with {child.returncode}")
                return
        finally:
            _kill(child)
        kills, before = kills + 1, 0.0
        if end is not None and time.monotonic() > end:
            options.minutes, end = 0, time.monotonic()  # one more life, to see that all is well
            options.commits, kill = done + options.every, None


def _start(directory: Path, options: argparse.Namespace, done: int) -> subprocess.Popen[str]:
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    most = 0 if options.minutes else options.commits
    told = {
        "commits": most,
        "every": options.every,
        "rows": options.rows,
        "seed": options.seed + done,
        "memory": options.memory,
        "retention": options.retention,
    }
    return subprocess.Popen(
        [sys.executable, __file__, "--work", str(directory), json.dumps(told)],
        stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip


def _kill(child: subprocess.Popen[str]) -> None:
    """The process and its JVM, at once."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _sample(directory: Path, pid: int) -> dict[str, Any]:
    """What /proc says of the process and its JVM, and what is on disk."""
    jvm = next((each for each in _descendants(pid) if _status(each).get("Name") == "java"), None)
    warehouse, scratch = directory / "warehouse", directory / "scratch"
    count, size = _disk(warehouse)
    catalog = sum(file.stat().st_size for file in warehouse.glob("catalog.db*"))
    return {
        "cpu": _cpu(pid) + (_cpu(jvm) if jvm else 0.0),
        "python_mib": _resident(pid),
        "jvm_mib": _resident(jvm) if jvm else None,
        "threads": int(_status(pid).get("Threads", "0")),
        "open_files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "catalog_mib": round(catalog / MIB, 2),
        "catalog_rows": _catalog_rows(warehouse / "catalog.db"),
        "files": count,
        "warehouse_mib": round(size / MIB, 2),
        "scratch_mib": round(_disk(scratch)[1] / MIB, 2),
    }


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def _resident(pid: int) -> float:
    return round(int(_status(pid).get("VmRSS", "0 kB").split()[0]) / 1024, 1)


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and "PPid" in (status := _status(int(each.name))):
            parents.setdefault(int(status["PPid"]), []).append(int(each.name))
    found, waiting = [], [pid]
    while waiting:
        waiting += (children := parents.get(waiting.pop(), []))
        found += children
    return found


def _disk(directory: Path) -> tuple[int, int]:
    """Files below a directory and their bytes on disk; what goes meanwhile does not count."""
    count = size = 0
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                size += 512 * Path(path, name).lstat().st_blocks
                count += 1
            except OSError:
                continue
    return count, size


def _catalog_rows(path: Path) -> dict[str, int]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


# ---------------------------------------------------------------- inside


class Worker:
    """The process that commits: one life of it."""

    def __init__(self, directory: Path, told: dict[str, Any]) -> None:
        self.directory, self.told = directory, told
        self.rng = random.Random(told["seed"])
        self.delivered = 0
        conf = {"retention": told["retention"], "spark.driver.memory": told["memory"]}
        self.engine = cq_engine.connect(directory / "warehouse", conf=conf, limits=LIMITS)
        self.engine.callback("counted")(self._count)

    def _count(self, batch: cq_engine.DeltaBatch) -> None:
        self.delivered += sum(1 for _ in batch)

    def run(self) -> int:
        with self.engine as engine:
            if not engine.catalog.state.tables:
                self._create()
            first, after = engine.execute("SELECT min(id) AS a, max(id) AS b FROM orders").fetchall()[0]
            done = self._check()
            most, every = self.told["commits"], self.told["every"]
            checked = time.monotonic()
            while not most or done < most:
                seconds = []
                for _ in range(every):
                    began = time.perf_counter()
                    self._commit(first, after, by_dml=done % 10 == 9)
                    seconds.append(time.perf_counter() - began)
                    first, after, done = first + 3, after + 3, done + 1
                began = time.perf_counter()
                engine.drain()
                told = {"commit_seconds": median(seconds), "slowest_commit_seconds": max(seconds)}
                told |= {"drain_seconds": time.perf_counter() - began, "refresh_seconds": self._refreshes()}
                print(json.dumps({"commits": done, **{n: round(s, 4) for n, s in told.items()}}), flush=True)
                if time.monotonic() - checked > 30:
                    self._check(done)
                    checked = time.monotonic()
            self._check(done)
        return 0

    def _create(self) -> None:
        engine, rows = self.engine, self.told["rows"]
        engine.execute("CREATE TABLE customers (cid INT PRIMARY KEY, name STRING, region INT)")
        engine.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT, amount INT)")
        with engine.transaction() as transaction:
            transaction.insert("customers", [(c, f"customer {c}", c % 10) for c in range(CUSTOMERS)])
            transaction.insert("orders", [(n, n % CUSTOMERS, self.rng.randrange(100)) for n in range(rows)])
        for name, text in QUERIES.items():
            destination = " DESTINATION CALLBACK counted" if name == "spent" else ""
            engine.execute(f"CREATE CONTINUOUS QUERY {name} ON COMMIT{destination} AS {text}")

    def _commit(self, first: int, last: int, *, by_dml: bool) -> None:
        """Three orders come, three change, and the three oldest go; now and then a customer changes."""
        rng, engine = self.rng, self.engine
        new = [(last + n, rng.randrange(CUSTOMERS), rng.randrange(100)) for n in (1, 2, 3)]
        if by_dml:
            with engine.transaction() as transaction:
                transaction.insert("orders", new)
                transaction.update(
                    "orders",
                    {"amount": str(rng.randrange(100))},
                    where=f"id = {rng.randint(first + 3, last)}",
                )
                transaction.delete("orders", where=f"id < {first + 3}")
                transaction.update(
                    "customers", {"region": str(rng.randrange(10))}, where=f"cid = {rng.randrange(CUSTOMERS)}"
                )
            return
        changed = rng.sample(range(first + 3, last), 3)
        rows = [("I", *row) for row in new]
        rows += [("U", n, rng.randrange(CUSTOMERS), rng.randrange(100)) for n in changed]
        rows += [("D", n, None, None) for n in range(first, first + 3)]
        types = [pa.string(), pa.int64(), pa.int32(), pa.int32()]
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows), types)]
        engine.apply_changes({"orders": pa.table(columns, names=["op", "id", "customer", "amount"])})

    def _refreshes(self) -> float:
        """The median of the last refreshes."""
        shown = self.engine.execute("SHOW REFRESHES").to_arrow()
        return median(s for s in shown["seconds"].to_pylist() if s is not None)

    def _check(self, done: int | None = None) -> int:
        """Compares deltas since the last check, which may be of an earlier life, with the change of the results; the number
        of commits."""
        engine, file = self.engine, self.directory / "checked"
        engine.drain()
        version = engine.catalog.newest_version
        results = {name: Counter(engine.execute(text).fetchall()) for name, text in QUERIES.items()}
        if file.exists():
            before, known, known_done = pickle.loads(file.read_bytes())
            for name, rows in results.items():
                gone, came = net(engine.deltas(name, before))
                if gone != known[name] - rows or came != rows - known[name]:
                    raise DeltaMismatchError(
                        f"{name}: deltas after version {before} are not what changed in the result"
                    )
            done = known_done + version - before if done is None else done
        file.with_suffix(".new").write_bytes(pickle.dumps((version, results, done or 0)))
        file.with_suffix(".new").replace(file)
        return done or 0


# ---------------------------------------------------------------- conclusions


def conclude(figures: Sequence[Figure]) -> Iterator[Figure]:
    """For each series the medians of its first and its last quarter, without the first tenth, in which caches fill."""
    for name, what in SERIES.items():
        values = _values(figures, name)
        values = values[len(values) // 10 :]
        quarter = max(1, len(values) // 4)
        if not values:
            continue
        first, last = median(values[:quarter]), median(values[-quarter:])
        flat = last <= 1.25 * first + SLACK.get(name, 0)
        yield {
            "figure": "series",
            "name": name,
            "what": what,
            "first_quarter": first,
            "last_quarter": last,
            "flat": flat,
        }
    samples = [f for f in figures if f["figure"] == "sample"]
    first, last = (samples[n]["catalog_rows"] for n in (len(samples) // 3, -1))
    grown = {name: [first.get(name, 0), n] for name, n in last.items() if n > 1.25 * first.get(name, 0) + 20}
    yield {"figure": "catalog tables that grow", "tables": grown}


def _values(figures: Sequence[Figure], name: str) -> list[float]:
    found = [f.get(name) for f in figures if f["figure"] == "sample"]
    return [sum(value.values()) if isinstance(value, dict) else value for value in found if value is not None]


def plot(figures: Sequence[Figure], path: str) -> None:
    """Every series over the commits."""
    drawn = canvas(len(SERIES), shared=False)
    if drawn is None:
        return
    drawing, panels = drawn
    samples = [f for f in figures if f["figure"] == "sample"]
    for panel, (name, what) in zip(panels, SERIES.items()):
        pairs = zip((s["commits"] for s in samples), (_values([s], name) for s in samples))
        points = [(x, y[0]) for x, y in pairs if y]
        panel.plot(*zip(*points), linewidth=1)
        panel.set(title=what, xlabel="commits", ylabel=name.rsplit("_", 1)[-1], ylim=(0, None))
        for before, after in pairwise(samples):
            if after["kills"] > before["kills"]:
                panel.axvline(after["commits"], color="lightgrey", linewidth=1, zorder=0)
    drawing.savefig(path, dpi=100)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = arguments("Load and time: what grows while commits go on.", scales=())
    parser.set_defaults(scales=[0])
    parser.add_argument("--commits", type=int, default=20_000, help="how many in a row (default: 20 000)")
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long instead, with kills")
    parser.add_argument(
        "--kill-seconds", type=float, default=120, help="between two kills, on average (default: 120)"
    )
    parser.add_argument("--every", type=int, default=50, help="commits between two samples (default: 50)")
    parser.add_argument("--rows", type=int, default=2_000, help="orders in the table (default: 2 000)")
    parser.add_argument(
        "--retention", default="2 minutes", help="longer than from check to check (default: 2 minutes)"
    )
    parser.add_argument("--memory", default="1g", help="Spark's memory (default: 1g)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
