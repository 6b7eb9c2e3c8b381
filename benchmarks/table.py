"""The figures of docs/benchmarks as a table: what was aimed at, and what was measured.

    python benchmarks/table.py                                   # prints it
    python benchmarks/table.py --write                           # puts it into docs/benchmarks/README.md

A row is a JSON line; the table holds nothing that is not in one, but the targets below. Lines that are only drawn are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- figures: written by benchmarks/table.py -->"
END = "<!-- end of figures -->"

TARGETS: Mapping[tuple[str, str], str] = {
    (
        "recompute_and_diff",
        "refresh against recompute",
    ): "Spark with diff: 25 joins, 12 aggregates; DuckDB: 10, 1",
    ("recompute_and_diff", "single transaction"): "at most 10 times a trivial query",
    ("recompute_and_diff", "growth"): "at most 1.2",
    ("shapes_refresh", "growth"): "at most 1.2",
    ("catch_up", "catch up"): "above DuckDB's changes per second",
    ("catch_up", "transactional over compressed"): "at most 1.5",
    ("many_queries", "growth"): "at most 3",
    ("cold_start", "first delta"): "at most 3 times an empty program of PySpark, and 6 s",
    ("destinations", "rows per second"): "at least 0.5 of a plain loop",
    ("merged_table", "merge over history"): "at most 2",
    ("cliffs", "cliff"): "at most 2",
    ("states", "cliff"): "at most 2",
    ("background", "over"): "commits 2, refreshes 2.5 (over the median)",
    ("mesh_choice", "choice"): "at least 0.9",
    ("cluster", "two workers over one"): "at least 1.7 (with a core for each)",
    ("cluster", "refresh after 20 transactions"): "at most 3",
    ("growth", "growth"): "memory at most 1.2",
    ("load", "load"): "at most 2",
    ("load", "create"): "at most 2",
    ("load", "first"): "at most 2",
    ("object_store", "refresh, bucket over directory"): "at most 1.5",
    ("captures", "tick"): "the method for the purpose: not slower than bisection",
    ("cold_start", "prompt"): "at most 0.5 s",
    ("sweep_messages", "messages"): "SWEEP: at most n − 1 (paper)",
    ("sweep_messages", "rate"): "500 a second of each of 3 sources",
    ("sweep_messages", "growth"): "at most 2",
    ("paper_figures", "1 general over fk_pk"): "up to 10 (paper)",
    ("paper_figures", "2 general over fk_pk"): "up to 4, small deltas (paper)",
    ("paper_figures", "3 fk_pk over fk_pk_units"): "5 to 0.8 (paper)",
    ("paper_figures", "4 fk_pk over fk_pk_units"): "1.5 to 2 (paper)",
    ("paper_figures", "5 fk_pk over fk_pk_units"): "above 1 for shares below 0.8 (paper)",
    ("paper_figures", "6 sql over undo"): "up to 1.5, small deltas (paper)",
    ("paper_figures", "7 refresh frequency"): "35 every 10, about 1 from 100 on (paper)",
}
"""By benchmark and figure; a ratio unless it says a unit."""

_WHERE = (
    "of",
    "mode",
    "phase",
    "background",
    "step",
    "stream",
    "query",
    "queries",
    "scale",
    "scales",
    "clustered",
    "orders",
    "skew",
    "look-ups by",
    "share",
    "keys",
    "captured",
    "method",
    "place",
    "changed",
    "every",
    "transactions",
    "processes",
    "catalog",
    "relations",
    "per_question",
    "per_second",
    "queue",
    "gigabytes",
    "groups",
)
"""What tells the lines of one figure apart."""
_ASIDE = {
    "benchmark",
    "figure",
    "n",
    "rounds",
    "plan",
    "form",
    "rows",
    "delta_rows",
    "changes",
    "refreshes",
    "commits",
    "course",
    "queries_with_deltas",
    "updates",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, or writes it into the page."""
    parser = argparse.ArgumentParser(description="The benchmarks' figures as a table.")
    default = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
    parser.add_argument("directory", type=Path, nargs="?", default=default, help="with .jsonl files")
    parser.add_argument("--write", action="store_true", help="into the README.md there")
    options = parser.parse_args(argv)
    text = "\n".join(markdown(options.directory))
    if not options.write:
        print(text)
        return 0
    page = options.directory / "README.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        parser.error(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


def markdown(directory: Path) -> Iterator[str]:
    """A section per file of JSON lines."""
    for path in sorted(directory.glob("*.jsonl")):
        figures = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        yield f"\n### {path.stem}\n"
        for figure in figures:
            if figure["figure"] == "machine":
                yield _machine(figure)
        yield "| figure | of | target | ratio | measured | n |"
        yield "|---|---|---|---|---|---|"
        for figure in figures:
            if figure["figure"] not in {"machine", "load", "commit", "delivery", "step", "state"}:
                yield _row(figure)
    yield ""


def _machine(figure: Mapping[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {figure[name]}" for name in ("python", "pyspark", "duckdb") if name in figure
    )
    return f"{figure['cores']} cores, {figure['memory_gib']} GiB, load {figure['load']} at the start; {versions}\n"


def _row(figure: Mapping[str, Any]) -> str:
    where = ", ".join(
        f"{name} {_shown(figure[name])}" if name not in {"query", "of"} else str(figure[name])
        for name in _WHERE
        if name in figure
    )
    target = TARGETS.get((figure["benchmark"], figure["figure"]), "")
    ratios = [
        f"{name.removesuffix('_ratio').replace('_', ' ')} {_shown(value)}"
        if name != "ratio"
        else _shown(value)
        for name, value in figure.items()
        if name.endswith("ratio")
    ]
    measured = [
        f"{name.removesuffix('seconds').strip('_').replace('_', ' ')} {_shown(value)} s".strip()
        if name.endswith("seconds")
        else f"{name.replace('_', ' ')} {_shown(value)}"
        for name, value in figure.items()
        if name not in {*_ASIDE, *_WHERE} and not name.endswith("ratio")
    ]
    cells = (figure["figure"], where, target, ", ".join(ratios), ", ".join(measured))
    return f"| {' | '.join(cells)} | {figure.get('n', figure.get('rounds', ''))} |"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_shown, value))
    return (
        f"{value:,}".replace(",", " ")
        if isinstance(value, int) and not isinstance(value, bool)
        else str(value)
    )


if __name__ == "__main__":
    raise SystemExit(main())
