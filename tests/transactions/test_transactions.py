"""Several transactions: snapshots, conflicts, time, change logs, the batch of another system, COPY."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cq_engine.core.errors import AnalysisError, ConflictError, ConstraintError, CQError, TransactionError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from cq_engine.transactions.apply_changes import apply_all
from tests.transactions.harness import Small, execute, tuples


@pytest.fixture
def stock(small: Small) -> Small:
    small.create("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
    small.create("CREATE TABLE o (k INT PRIMARY KEY, v STRING)")
    small.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    return small


def test_a_snapshot_stays(stock: Small) -> None:
    first = stock.begin()
    stock.run("INSERT INTO t VALUES (3, 'c')")
    assert stock.rows("SELECT k FROM t", first) == [(1,), (2,)]
    execute(first, "INSERT INTO t VALUES (4, 'd')")
    assert stock.rows("SELECT k FROM t", first) == [(1,), (2,), (4,)]
    first.commit()
    assert first.changed == {"t": frozenset({"INSERT"})}
    assert stock.rows("SELECT k FROM t") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("UPDATE t SET v = 'x' WHERE k = 1", "UPDATE t SET v = 'y' WHERE k = 2"),
        ("INSERT INTO t VALUES (3, 'x')", "INSERT INTO t VALUES (3, 'y')"),
        ("INSERT INTO o SELECT * FROM t", "DELETE FROM t WHERE k = 1"),
    ],
)
def test_conflicts(stock: Small, mine: str, theirs: str) -> None:
    first = stock.begin()
    execute(first, mine)
    stock.run(theirs)
    with pytest.raises(ConflictError) as caught:
        first.commit()
    assert "retry" in caught.value.hint
    with pytest.raises(TransactionError):
        first.commit()


def test_commit_time(stock: Small) -> None:
    late = datetime(2024, 6, 1, tzinfo=timezone.utc)
    first = stock.begin()
    execute(first, "INSERT INTO t VALUES (3, 'c')")
    first.commit(late)
    second = stock.begin()
    execute(second, "INSERT INTO t VALUES (4, 'd')")
    with pytest.raises(TransactionError, match="lies before") as caught:
        second.commit(late - timedelta(days=1))
    assert "clock" in caught.value.hint
    assert stock.rows("SELECT k FROM t TIMESTAMP AS OF '2024-05-01 00:00:00'") == [(1,), (2,)]


def test_change_logs_as_queries(stock: Small) -> None:
    stock.run("UPDATE t SET v = 'z' WHERE k = 1")
    text = "SELECT c.k, c.v, c._change_type, c._commit_version FROM {} c"
    expected = [(1, "a", "update_preimage", 2), (1, "z", "update_postimage", 2)]
    for form in ("t CHANGES FROM VERSION 2 TO VERSION 2", "table_changes('t', 2)"):
        assert stock.rows(text.format(form)) == expected
    moment = stock.rows("SELECT DISTINCT _commit_timestamp FROM t CHANGES FROM VERSION 1")[0][0]
    assert moment == stock.clock.now()
    assert stock.rows("WITH t AS (SELECT 7 AS k) SELECT k FROM t") == [(7,)]
    assert stock.rows("SELECT t.k FROM t FOR SYSTEM_VERSION AS OF 1 JOIN o ON t.k = o.k") == []
    with pytest.raises(AnalysisError, match="no version 99"):
        stock.rows("SELECT * FROM t VERSION AS OF 99")


def test_python_rows(stock: Small) -> None:
    current = stock.begin()
    current.insert("t", [{"k": 5, "v": "five"}, {"k": 6}])
    current.insert("t", [(7, "seven")])
    current.insert("t", pa.table({"V": ["eight"], "K": [8]}))
    current.update("t", {"v": "upper(v)"}, where="k = 5")
    current.delete("t", where="k = 1")
    current.commit()
    assert stock.rows("SELECT * FROM t") == [(2, "b"), (5, "FIVE"), (6, None), (7, "seven"), (8, "eight")]
    with pytest.raises(AnalysisError):
        stock.begin().insert("t", [{"k": "no number"}])


# ---------------------------------------------------------------- apply_changes


def _batch(**columns: list[object]) -> pa.Table:
    return pa.table(columns)


def test_apply_changes(stock: Small) -> None:
    batch = _batch(
        k=[3, 1, 3, 4, 4, 2, 2],
        v=["c", "A", "C", "d", None, None, "B"],
        op=["I", "U", "U", "I", "D", "D", "I"],
        txn=[70, 70, 50, 50, 50, 90, 90],
        seq=[1, 2, 3, 4, 5, 6, 7],
    )
    done = apply_all(stock.services, {"t": batch}, transaction="txn", order="seq")
    assert done.versions == [2, 3, 4]
    assert done.changed == {2: {"t": {"INSERT", "UPDATE"}}, 3: {"t": {"UPDATE"}}, 4: {"t": {"UPDATE"}}}
    assert stock.image("t", 2) == [(1, "A"), (2, "b"), (3, "c")]
    assert stock.image("t", 3) == [(1, "A"), (2, "b"), (3, "C")]
    assert stock.image("t", 4) == [(1, "A"), (2, "B"), (3, "C")]


def test_apply_changes_is_the_same_as_dml(stock: Small, small: Small) -> None:
    batch = _batch(k=[1, 5, 5, 1], v=["p", "q", "r", "s"], op=["U", "I", "U", "U"], txn=[1, 1, 2, 3])
    apply_all(stock.services, {"t": batch, "o": batch.slice(1, 1)}, transaction="txn")
    applied = tuples(stock.log("t"))
    stock.create("CREATE TABLE u (k INT PRIMARY KEY, v STRING)")
    stock.run("INSERT INTO u VALUES (1, 'a'), (2, 'b')")
    stock.run("UPDATE u SET v = 'p' WHERE k = 1", "INSERT INTO u VALUES (5, 'q')")
    stock.run("UPDATE u SET v = 'r' WHERE k = 5")
    stock.run("UPDATE u SET v = 's' WHERE k = 1")
    assert applied == sorted([(*row[:-1], row[-1] - 4) for row in tuples(stock.log("u"))], key=repr)
    assert stock.rows("SELECT * FROM o") == [(5, "q")]


def test_apply_changes_is_atomic(stock: Small) -> None:
    for batch, why in (
        (_batch(k=[9, 7], v=["x", "y"], op=["I", "U"]), "no row with this key"),
        (_batch(k=[9, 1], v=["x", "y"], op=["I", "I"]), "exists already"),
        (_batch(k=[9, None], v=["x", "y"], op=["I", "I"]), "NULL"),
    ):
        with pytest.raises(ConstraintError, match=why):
            apply_all(stock.services, {"t": batch})
    assert stock.catalog.newest_version == 1
    with pytest.raises(AnalysisError, match="unknown operation"):
        apply_all(stock.services, {"t": _batch(k=[9], v=["x"], op=["Z"])})


def test_apply_changes_of_keys_and_times(stock: Small) -> None:
    start = datetime(2024, 2, 1, tzinfo=timezone.utc)
    batch = pa.table(
        {
            "k": [11, 2],
            "v": ["a", "bb"],
            "old_k": [1, 2],
            "op": ["U", "U"],
            "x": [1, 2],
            "at": [start, start + timedelta(1)],
        }
    )
    done = apply_all(stock.services, {"t": batch}, transaction="x", commit_time="at")
    assert stock.rows("SELECT * FROM t") == [(11, "a"), (2, "bb")]
    assert stock.catalog.timestamp(done.versions[-1]) == start + timedelta(1)


# ---------------------------------------------------------------- COPY INTO


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, Limits(pending_rows=0)], ids=["small", "bulk"])
def test_copy(small: Small, tmp_path: Path) -> None:
    small.create("CREATE TABLE c (id BIGINT PRIMARY KEY, d DATE, x DOUBLE, s STRING)")
    (tmp_path / "a.csv").write_text("s,id,x\nhello,1,1.5\n,2,\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("3,2024-01-02,0.5,b\n", encoding="utf-8")
    (tmp_path / "c.json").write_text('{"id": 4, "s": "j", "d": "2024-02-03"}\n', encoding="utf-8")
    pq.write_table(pa.table({"id": pa.array([5], pa.int32()), "x": [2.5]}), tmp_path / "d.parquet")
    assert small.run(f"COPY INTO c FROM '{tmp_path / 'a.csv'}'").rowcount == 2
    small.run(f"COPY INTO c FROM '{tmp_path / 'b.csv'}' FORMAT csv OPTIONS (header = 'false')")
    small.run(f"COPY INTO c FROM '{tmp_path / 'c.json'}'")
    small.run(f"COPY INTO c FROM '{tmp_path / 'd.parquet'}'")
    assert small.rows("SELECT id, CAST(d AS STRING), x, s FROM c") == [
        (1, None, 1.5, "hello"),
        (2, None, None, None),
        (3, "2024-01-02", 0.5, "b"),
        (4, "2024-02-03", None, "j"),
        (5, None, 2.5, None),
    ]
    (tmp_path / "bad.csv").write_text("id,x\n9,no number\n", encoding="utf-8")
    with pytest.raises(CQError):
        small.run(f"COPY INTO c FROM '{tmp_path / 'bad.csv'}'")
    with pytest.raises(ConstraintError, match="id = 1"):
        small.run(f"COPY INTO c FROM '{tmp_path / 'a.csv'}'")
    small.run("UPDATE c SET s = 'u' WHERE id = 1", "DELETE FROM c WHERE id = 5")
    assert small.rows("SELECT id, s FROM c WHERE id IN (1, 5)") == [(1, "u")]
