"""Data files that are damaged or missing, and statements of any size: what a person is told, and that work goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import CQError, Engine, RefreshError, StorageError
from cq_engine.core.limits import Limits
from cq_engine.grammar.nesting import MAX_LEVELS


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    limits = Limits(small_rows=10, inline_bytes=100)  # everything lies in files
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=limits) as opened:
        opened.execute("CREATE TABLE t (k INT PRIMARY KEY, a INT)")
        opened.execute("INSERT INTO t SELECT id, id FROM range(100)")
        opened.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT * FROM t WHERE a >= 50")
        opened.refresh("q")
        opened.execute("INSERT INTO t SELECT id, id FROM range(100, 200)")
        yield opened


def newest_file(warehouse: Path) -> Path:
    return max((warehouse / "tables").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def scramble(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"PAR1" + b"\x07" * (size - 4))


@pytest.mark.parametrize("spoil", [cut, scramble, Path.unlink])
def test_a_spoilt_file(engine: Engine, warehouse: Path, spoil: Callable[[Path], None]) -> None:
    file = newest_file(warehouse)
    whole = file.read_bytes()
    spoil(file)
    with pytest.raises(RefreshError) as caught:
        engine.refresh("q")
    name = file.relative_to(warehouse).as_posix()
    assert "cannot read the rows of t" in str(caught.value)
    assert name in caught.value.detail
    assert str(warehouse) not in str(caught.value)
    status = engine.catalog.status("q")
    assert status.state == "FAILED"
    assert name in status.error
    for work in (
        lambda: engine.execute("SELECT count(a), sum(a) FROM t").fetchall(),
        lambda: engine.execute("COMPACT TABLE t"),
        engine.publish,
    ):
        with pytest.raises(StorageError, match=name) as said:
            work()
        assert said.value.hint
    file.write_bytes(whole)
    engine.execute("ALTER CONTINUOUS QUERY q RESUME")
    assert engine.refresh("q").inserted == 100


def test_what_nobody_foresaw_fails_the_query(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_arguments: Any) -> None:
        raise KeyError("x")

    with monkeypatch.context() as patch:
        patch.setattr(engine.queries.refresher.chooser, "choose", bug)
        with pytest.raises(RefreshError, match="internal error: KeyError"):
            engine.refresh("q")
    assert engine.catalog.status("q").state == "FAILED"


def test_as_deep_as_is_allowed(engine: Engine) -> None:
    n = MAX_LEVELS
    deep = ["(" * n + "a" + ")" * n, "CASE WHEN a > 1 THEN " * n + "1" + " END" * n]
    for number, expression in enumerate(deep):
        engine.execute(f"SELECT {expression} AS x FROM t").fetchall()
        engine.execute(f"CREATE CONTINUOUS QUERY d{number} ON DEMAND AS SELECT k, {expression} AS x FROM t")


@pytest.mark.parametrize("operator", [" + ", " AND a = "])
def test_long_chains_of_operators(engine: Engine, operator: str) -> None:
    for text in ("SELECT", "CREATE CONTINUOUS QUERY c ON DEMAND AS SELECT"):
        error = None
        try:
            engine.execute(f"{text} * FROM t WHERE a = {operator.join(['a'] * 6_000)}")
        except CQError as raised:
            error = raised
        if error is not None:  # where the stack holds it, all the better
            assert "nested too deeply" in error.message
            assert str(MAX_LEVELS) in error.hint
            assert len(str(error)) < 2000
