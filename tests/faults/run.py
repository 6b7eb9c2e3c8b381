"""The long mode: `python -m tests.faults.run --trials 5000`, in pieces of `--seconds`; and the table of what was met.

Every piece has a seed of its own and adds to `docs/reliability/faults.json`; then the table in docs/reliability.md is
written anew.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from cq_engine.core import faults
from tests import postgres
from tests.faults.campaign import CELLS, campaign, quick_place
from tests.faults.kinds import KINDS, why_not

ROOT = Path(__file__).parents[2]
TALLY = ROOT / "docs/reliability/faults.json"
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- table of faults -->", "<!-- end of the table of faults -->"


def table(met: Counter[str]) -> str:
    """How often each kind of fault was met at each point, as Markdown. `—`: it cannot be (`kinds.why_not`)."""
    lines = [f"| fault point | {' | '.join(KINDS)} |", f"|---|{'---:|' * len(KINDS)}"]
    for point in faults.POINTS:
        if why_not(point, "SIGKILL"):  # not in these trials
            continue
        cells = ["—" if why_not(point, kind) else str(met[f"{point} {kind}"]) for kind in KINDS]
        lines.append(f"| `{point}` | {' | '.join(cells)} |")
    totals = [sum(count for cell, count in met.items() if cell.endswith(f" {kind}")) for kind in KINDS]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, totals))} |"])


def points() -> str:
    """What the points are, as Markdown."""
    lines = ["| fault point | where it stands |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{point}` | {text} |" for point, text in faults.POINTS.items())])


def kinds() -> str:
    """What the kinds are, as Markdown."""
    return "\n".join(
        ["| kind | what happens |", "|---|---|", *(f"| {k} | {text} |" for k, text in KINDS.items())]
    )


def section(tally: dict[str, dict[str, int]]) -> str:
    """What stands between the marks in docs/reliability.md."""
    return "\n\n".join([BEGIN, kinds(), table(Counter(tally["met"])), points(), END])


def write(tally: dict[str, dict[str, int]]) -> None:
    """The tally, and the page."""
    TALLY.parent.mkdir(exist_ok=True)
    TALLY.write_text(json.dumps(tally, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(head + section(tally) + rest.partition(END)[2], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=5000, help="how many in all, with those of earlier pieces"
    )
    parser.add_argument("--seconds", type=float, default=480, help="of this piece at most")
    parser.add_argument("--fresh", action="store_true", help="count from the beginning")
    told = parser.parse_args()
    tally: dict[str, dict[str, int]] = {"met": {}, "pieces": {}}
    if TALLY.exists() and not told.fresh:
        tally = json.loads(TALLY.read_text(encoding="utf-8"))
    seed = len(tally["pieces"]) + 1
    logging.disable(logging.WARNING)
    with ExitStack() as stack:
        place = stack.enter_context(quick_place())
        made: Callable[[], tuple[str, Callable[[], None]]] | None = None
        if not postgres.missing():
            server = stack.enter_context(postgres.server())
            made = lambda: with_cut(postgres.fresh(server))  # noqa: E731
        left = told.trials - sum(tally["pieces"].values())
        missing = [cell for cell in CELLS if " ".join(cell) not in tally["met"]]
        met = campaign(place, seed, max(0, left), seconds=told.seconds, first=missing, postgres=made)
    for (point, kind), count in met.items():
        tally["met"][f"{point} {kind}"] = tally["met"].get(f"{point} {kind}", 0) + count
    tally["pieces"][str(seed)] = sum(met.values())
    write(tally)
    cpu = sum(os.times()[:4])  # without that of the children, which the server of forks waits for
    print(
        f"piece {seed}: {sum(met.values())} faults, {cpu:.0f} s of CPU; {sum(tally['pieces'].values())} in all"
    )


def with_cut(url: str) -> tuple[str, Callable[[], None]]:
    """A database, and what ends its connections."""
    return url, lambda: postgres.cut(url)


if __name__ == "__main__":
    main()
