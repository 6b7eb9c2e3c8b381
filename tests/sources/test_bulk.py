"""Rows that are compared by Spark, as they are too many for the driver."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits


@pytest.mark.parametrize("limits", [Limits(), Limits(pending_rows=1, small_rows=-1)], ids=["driver", "spark"])
@pytest.mark.parametrize("kind", ["DOUBLE", "STRING COLLATE UTF8_LCASE", "ARRAY<DOUBLE>"])
def test_what_is_equal_and_not_the_same_is_a_change(
    once: SparkSession, tmp_path: Path, kind: str, limits: Limits
) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    wrapped = kind.startswith("ARRAY")
    numbers = ["1.5", "0.0", "null", "0.1"]
    values = ['"a"', '"A"', "null", '""', '"a"'] if "STRING" in kind else numbers
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits) as engine:
        engine.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v {kind})")
        engine.execute(f"CREATE SOURCE lake TYPE json WITH (path = '{inbox}', settled = '0 seconds')")
        engine.execute("CREATE CAPTURE c INTO t FROM lake USING COPY ON DEMAND")
        for number, value in enumerate(values):
            shown = f"[{value}]" if wrapped else value
            lines = [f'{{"id": {n}, "v": {shown if n == 2 else "null"}}}' for n in range(4)]
            (inbox / "rows.json").write_text("\n".join(lines) + "\n")
            done = engine.refresh_capture("c")
            assert (done.rows, value) == (4 if number == 0 else 2, value)
            found = engine.execute("SELECT CAST(v AS STRING) FROM t WHERE id = 2").fetchall()[0][0]
            wanted = None if value == "null" else value.strip('"')
            assert found == (f"[{wanted or 'null'}]" if wrapped else wanted)
            assert engine.refresh_capture("c").rows == 0


def test_two_rows_with_one_key_are_refused_where_one_is_as_it_is_here(
    once: SparkSession, tmp_path: Path
) -> None:
    """MERGE would see the other one alone."""
    source = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    source.execute("CREATE TABLE o (id INTEGER NOT NULL, v TEXT)")
    source.executemany("INSERT INTO o VALUES (?, ?)", [(1, "v"), (2, "w")])
    limits = Limits(pending_rows=1, small_rows=-1)
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v STRING)")
        engine.execute(f"CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{tmp_path}/shop.db')")
        engine.execute("CREATE CAPTURE c INTO t FROM shop TABLE 'o' USING COPY ON DEMAND")
        engine.refresh_capture("c")
        source.execute("INSERT INTO o VALUES (1, 'z')")
        with pytest.raises(cq_engine.SourceError, match="several rows of the source have one key"):
            engine.refresh_capture("c")
        assert sorted(engine.execute("SELECT * FROM t").fetchall()) == [(1, "v"), (2, "w")]
