"""Messages of SWEEP and Nested SWEEP beside ECA, Strobe and C-Strobe, over rates of concurrent updates (Agrawal et al., Table 1).

    python benchmarks/sweep_messages.py                                             # a minute
    python benchmarks/sweep_messages.py --updates 2000 --relations 3 4 5 6 7

The world is simulated (`sweep_world.py`): a chain of relations, one at each source, changes row by row, and a message takes its
time. `per_question` is how many updates each source commits in the time of one question and its answer.

    messages           per update of a source, by algorithm; each is a question that has an answer
    terms              of ECA, per query: its message grows by what is under way
    inserts            messages per insert: Strobe and C-Strobe do deletes, half of the updates, by key and without any message
    states             of the view that are installed, per update: 1 is complete, less waits for quiescence or is a batch

The view is compared with one computed from the sources' history: at the end, and at every fiftieth state
where each is promised. Where a query of ECA would have 100 000 terms, or one of C-Strobe as many rows, the point is left out. `rate` is of the sweeps alone, over sources in memory that answer at once: how many updates a second
are maintained of a queue with so many of each source, `scattered` over all rows or `hot`, all of them of a few.

One JSON line per figure.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from frame import Figure, arguments, canvas, ratio, run
from pyspark.sql import SparkSession
from sweep_memory import Memory
from sweep_references import ECA, CStrobe, Strobe, Warehouse
from sweep_world import SAMPLE, Partial, TooMuchError, World, join

from cq_engine.sources.sweep.maintain import Maintainer
from cq_engine.sources.sweep.model import Bounds, Consistency, Delta

NAME = "sweep_messages"
ALGORITHMS = (
    "ECA",
    "Strobe",
    "C-Strobe",
    "SWEEP",
    "SWEEP together",
    "Nested SWEEP",
    "CONVERGENT",
)
SWEEPS = {
    "SWEEP": (Consistency.COMPLETE, Bounds(together=1)),
    "SWEEP together": (Consistency.COMPLETE, Bounds()),
    "Nested SWEEP": (Consistency.STRONG, Bounds()),
    "CONVERGENT": (Consistency.CONVERGENT, Bounds()),
}
REFERENCES: dict[str, type[Warehouse]] = {"ECA": ECA, "Strobe": Strobe, "C-Strobe": CStrobe}
COMPLETE = {"C-Strobe", "SWEEP", "SWEEP together"}


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    del spark
    options = _options(argv)
    options.scales = [1.0]

    def measure(_: Path, __: float) -> Iterator[Figure]:
        for n in options.relations:
            for rate in options.rates:
                yield from messages(n, rate, options)
        yield from rates(options)

    return run(NAME, options, measure, draw=plot)


def messages(n: int, rate: float, options: argparse.Namespace) -> Iterator[Figure]:
    """All algorithms over one history."""
    where = {"relations": n, "per_question": rate}
    sent: Figure = {"figure": "messages", **where}
    installed: Figure = {"figure": "states", **where}
    for algorithm in ALGORITHMS:
        world = World(n, rate, options.updates, options.seed)
        with suppress(TooMuchError):
            view, states, terms = maintained(algorithm, world)
            world.check(world.prefix(options.updates), view)
            if algorithm in COMPLETE and states != options.updates:
                raise AssertionError(f"{algorithm} over {n} relations at {rate} has {states} states")
            sent[algorithm] = _per(world.messages, options.updates)
            installed[algorithm] = _per(states, options.updates)
            if terms is not None:
                sent[f"{algorithm} terms"] = _per(terms, options.updates)
            if "Strobe" in algorithm:
                inserts = sum(arrival.sign > 0 for arrival in world.arrivals)
                sent[f"{algorithm} inserts"] = _per(world.messages, inserts)
    yield sent
    yield installed


def maintained(algorithm: str, world: World) -> tuple[Counter[Partial], int, int | None]:
    """The view at the end, how many states it had, and the terms of ECA's queries."""
    if algorithm in SWEEPS:
        return (*swept(world, *SWEEPS[algorithm]), None)
    warehouse = REFERENCES[algorithm](world)
    terms = warehouse.run()
    return warehouse.view, warehouse.states, terms


def swept(world: World, consistency: Consistency, bounds: Bounds) -> tuple[Counter[Partial], int]:
    """A view that is maintained by sweeps, and how many states it had."""
    maintainer = Maintainer(world.view, dict.fromkeys(world.view.sources, 0), world, consistency, bounds)
    states, view = 0, world.evaluate(world.prefix(0))
    vector = [0] * len(world.view.sources)
    while sum(vector) < len(world.arrivals):
        delta = maintainer.run()
        if delta is None:
            # Nothing has come yet: the next update is waited for.
            world.now = max(world.now, world.arrivals[sum(vector)].delivered)
            continue
        for step, change in zip(delta.steps, changes(world, delta)):
            view.update(change)
            view = Counter({rows: count for rows, count in view.items() if count})
            vector = [step.positions[source] for source in world.view.sources]
            states += 1
            if states % SAMPLE == 0:
                world.check(vector, view)
            maintainer.committed(step)
    return view, states


def changes(world: World, delta: Delta) -> list[Counter[Partial]]:
    """The change of the view, by step."""
    found: list[Counter[Partial]] = [Counter() for _ in delta.steps]
    n = len(world.view.relations)
    inputs: list[list[list[tuple[int, tuple[int, ...]]]]] = [[[] for _ in range(n)] for _ in delta.terms]
    for place, relation in enumerate(world.view.relations):
        for term, sign, row in delta.rows(relation.name):
            inputs[term][place].append((sign, row))
    for term, step in enumerate(delta.terms):
        signs = {row: sign for signed in inputs[term] for sign, row in signed if sign < 0}
        partials: list[Partial] = [(None,) * n]
        for place, signed in enumerate(inputs[term]):
            partials = join(partials, place, [row for _, row in signed])
        for rows in partials:
            found[step][rows] += -1 if any(row in signs for row in rows) else 1
    return found


def rates(options: argparse.Namespace) -> Iterator[Figure]:
    """Updates a second, of queues of different lengths, and how much longer an update takes in the longest one."""
    for spread in ("scattered", "hot"):
        for algorithm, (consistency, bounds) in SWEEPS.items():
            seconds = {}
            for length in options.queues:
                memory = Memory(3, 20_000, length, spread, random.Random(options.seed))
                maintainer = Maintainer(
                    memory.view, dict.fromkeys(memory.view.sources, 0), memory, consistency, bounds
                )
                started, updates = time.perf_counter(), 0
                while (delta := maintainer.run()) is not None:
                    for step in delta.steps:
                        updates += len(step.updates)
                        maintainer.committed(step)
                seconds[length] = (time.perf_counter() - started) / updates
                yield {
                    "figure": "rate", "of": f"{algorithm}, {spread}", "queue": length, "updates": updates,
                    "updates_per_second": round(1 / seconds[length]),
                }  # fmt: skip
            small, large = min(seconds), max(seconds)
            if small < large:
                yield {
                    "figure": "growth", "of": f"{algorithm}, {spread}", "queue": [small, large],
                    "ratio": ratio(seconds[large], seconds[small]),
                }  # fmt: skip


def plot(figures: Sequence[Figure], path: str) -> None:
    """Messages and states by rate, and messages by the number of sources."""
    drawn = canvas(3, shared=False)
    if drawn is None:
        return
    drawing, (by_rate, by_size, states) = drawn
    points = [figure for figure in figures if figure["figure"] in {"messages", "states"}]
    sizes = sorted({figure["relations"] for figure in points})
    usual = min((figure["per_question"] for figure in points), key=lambda rate: abs(rate - 1))
    middle = 4 if 4 in sizes else sizes[0]
    for algorithm in ALGORITHMS:
        for panel, name, axis, fixed in (
            (by_rate, "messages", "per_question", ("relations", middle)),
            (states, "states", "per_question", ("relations", middle)),
            (by_size, "messages", "relations", ("per_question", usual)),
        ):
            chosen = [f for f in points if f["figure"] == name and f[fixed[0]] == fixed[1] and algorithm in f]
            panel.plot(
                [f[axis] for f in chosen],
                [f[algorithm] for f in chosen],
                marker="o",
                # What is on the same line as another one is seen through its gaps.
                linestyle="--" if algorithm == "CONVERGENT" else "-",
                label=algorithm,
            )
    by_size.plot(sizes, [n - 1 for n in sizes], color="black", linestyle=":", label="n − 1")
    by_rate.axhline(middle - 1, color="black", linestyle=":", label="n − 1")
    by_rate.set(
        title=f"messages per update, {middle} sources",
        xlabel="concurrent updates per source",
        xscale="log",
        yscale="log",
    )
    by_size.set(title=f"messages per update, {usual:g} concurrent", xlabel="sources", yscale="log")
    states.set(
        title=f"states per update, {middle} sources",
        xlabel="concurrent updates per source",
        xscale="log",
        yscale="log",
    )
    by_rate.legend(fontsize="x-small")
    drawing.savefig(path, dpi=150)


def _per(count: int, updates: int) -> float:
    return float(f"{count / updates:.3g}")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__.split("\n", 1)[0], scales=(), rounds=1)
    parser.add_argument("--updates", type=int, default=400, help="of all sources (default: %(default)s)")
    parser.add_argument(
        "--relations", type=int, nargs="+", default=[3, 4, 5, 6], help="of the view, a source each"
    )
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.01, 0.1, 0.3, 1, 3, 10],
        help="updates of each source in the time of a question and its answer",
    )  # fmt: skip
    parser.add_argument(
        "--queues", type=int, nargs="+", default=[500, 2000, 8000], help="updates of each source"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
