"""Files of Debezium's envelopes as sources, against a model of the database that has written them."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.sources.debezium.envelope import read_line, value_of
from cq_engine.sources.json_values import Unreadable

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
TABLE = "CREATE TABLE t (k BIGINT, d DECIMAL(10, 2), at TIMESTAMP, s STRING, PRIMARY KEY (k))"


@pytest.fixture
def engine(tmp_path: Path, once: SparkSession) -> Iterator[Engine]:
    limits = Limits(pending_rows=20)
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits) as opened:
        opened.execute(TABLE)
        yield opened


def unscaled(value: Decimal) -> str:
    number = int(value.scaleb(2))
    return base64.b64encode(number.to_bytes(8, "big", signed=True)).decode()


@dataclass
class Database:
    """Rows, the lines that tell of its transactions, and after each the rows and the number of its commits."""

    dice: random.Random
    plain: bool
    rows: dict[int, Row] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    after: list[tuple[dict[int, Row], int]] = field(default_factory=list)
    number: int = 0

    def commit(self) -> None:
        self.number += 1
        before = dict(self.rows)
        events = [event for _ in range(self.dice.randint(1, 5)) for event in self.change()]
        for op, old, new in events:
            self.say(op, old, new)
        commits = self.after[-1][1] if self.after else 0
        self.after.append((dict(self.rows), commits + (before != self.rows)))

    def change(self) -> list[tuple[str, Row | None, Row | None]]:
        k = self.dice.randint(0, 9)
        old, row = self.rows.get(k), self.row(k)
        if old is None:
            self.rows[k] = row
            return [(self.dice.choice("cr"), None, row)]
        if self.dice.random() < 0.3:
            del self.rows[k]
            return [("d", old, None)]
        if self.dice.random() < 0.2 and k + 10 not in self.rows:
            row = self.row(k + 10)
            del self.rows[k]
            self.rows[k + 10] = row
            return [("u", old, row)]
        self.rows[k] = row
        return [("u", self.dice.choice([old, None]), row)]

    def row(self, k: int) -> Row:
        return {
            "k": k,
            "d": self.dice.choice([None, Decimal("1.50"), Decimal("-2.25")]),
            "at": self.dice.choice([None, BEGIN + timedelta(microseconds=self.dice.randint(0, 10**12))]),
            "s": self.dice.choice([None, "", "a\nb", "ü"]),
        }

    def say(self, op: str, old: Row | None, new: Row | None) -> None:
        moment = BEGIN + timedelta(seconds=self.number)
        payload = {
            "op": op,
            "before": self.shown(old),
            "after": self.shown(new),
            "source": {
                "schema": "public",
                "table": "orders",
                "txId": self.number,
                "ts_ms": int(moment.timestamp() * 1000),
            },
        }
        given: Any = payload if self.plain else {"schema": self.schema(), "payload": payload}
        self.lines.append(json.dumps(given).encode() + b"\n")
        if op == "d":
            self.lines.append(b"null\n")
        if self.dice.random() < 0.1:
            other = {**payload, "source": {**payload["source"], "table": "others"}}
            self.lines.append(json.dumps(other).encode() + b"\n")

    def shown(self, row: Row | None) -> Row | None:
        if row is None:
            return None
        at = row["at"] and (row["at"] - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(
            microseconds=1
        )
        decimal = None if row["d"] is None else str(row["d"]) if self.plain else unscaled(row["d"])
        return {**row, "at": at, "d": decimal, "not captured": 1}

    def schema(self) -> Any:
        scale = {"scale": "2"}
        fields = [
            {
                "field": "d",
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": scale,
            },
            {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        ]
        return {"fields": [{"field": "before", "fields": fields}, {"field": "after", "fields": fields}]}


def here(engine: Engine) -> list[Row]:
    rows = engine.execute("SELECT k, d, at, s FROM t").to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["k"])


def test_the_replica_goes_through_the_states_of_the_database(engine: Engine, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    engine.execute(f"CREATE SOURCE shop TYPE debezium WITH (path = '{directory}')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop TABLE 'public.orders' USING LOG ON DEMAND")
    dice = random.Random(11)
    commits = 0
    database = Database(dice, plain=False)
    for n in range(12):
        file = directory / f"orders-{n // 3:03d}.jsonl"
        database.plain = n % 2 == 0
        database.lines = []
        for _ in range(dice.randint(1, 12)):
            database.commit()
        text = b"".join(database.lines)
        half = len(text) - dice.randint(1, 30)
        with file.open("ab") as log:
            log.write(text[:half])
        commits += len(engine.refresh_capture("c").commit_versions)
        with file.open("ab") as log:
            log.write(text[half:])
        done = engine.refresh_capture("c")
        commits += len(done.commit_versions)
        assert here(engine) == sorted(database.rows.values(), key=lambda row: row["k"])
        assert engine.refresh_capture("c").commit_versions == ()
    states = [state for state, _ in database.after]
    versions = engine.execute("SELECT DISTINCT _commit_version AS v FROM t CHANGES FROM VERSION 1").to_arrow()
    for version in sorted(versions.column("v").to_pylist()):
        rows = engine.execute(f"SELECT k, d, at, s FROM t VERSION AS OF {version}").to_arrow().to_pylist()
        found = {row["k"]: row for row in rows}
        if found not in states:  # the first half of a transaction that was not written whole when it was read
            assert commits > database.after[-1][1]


def test_times_of_the_source_are_ours(engine: Engine, tmp_path: Path) -> None:
    database = Database(random.Random(3), plain=True)
    for _ in range(20):
        database.commit()
    (tmp_path / "log.jsonl").write_bytes(b"".join(database.lines))
    engine.execute(f"CREATE SOURCE shop TYPE debezium WITH (path = '{tmp_path}/log.jsonl')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING LOG ON DEMAND")
    done = engine.refresh_capture("c")
    times = engine.execute(
        "SELECT DISTINCT _commit_version v, _commit_timestamp m FROM t CHANGES FROM VERSION 1"
    ).to_arrow()
    moments = {(row["m"] - BEGIN).total_seconds() for row in times.to_pylist()}
    assert moments <= set(map(float, range(1, 21)))
    assert len(moments) == times.num_rows
    assert len(done.commit_versions) >= len(moments)


def test_a_truncation_empties_the_table(engine: Engine, tmp_path: Path) -> None:
    database = Database(random.Random(5), plain=True)
    for _ in range(5):
        database.commit()
    truncation = {
        "op": "t",
        "before": None,
        "after": None,
        "source": {"table": "orders", "txId": 99, "ts_ms": 1},
    }
    database.lines.append(json.dumps(truncation).encode() + b"\n")
    database.rows.clear()
    database.commit()
    (tmp_path / "log.jsonl").write_bytes(b"".join(database.lines))
    engine.execute(f"CREATE SOURCE shop TYPE debezium WITH (path = '{tmp_path}/log.jsonl')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop USING LOG ON DEMAND")
    engine.refresh_capture("c")
    assert here(engine) == sorted(database.rows.values(), key=lambda row: row["k"])


POISON = [
    b"{half\n",
    b"[1]\n",
    b'{"op": "x"}\n',
    b'{"op": "c", "after": {"k": "one"}}\n',
    b'{"op": "d"}\n',
    b"\xff\n",
]
GOOD = b'{"op": "c", "after": {"k": 1, "d": null, "at": null, "s": "a"}}\n'


@pytest.mark.parametrize("poison", POISON)
def test_poison_stops_and_loses_nothing(engine: Engine, tmp_path: Path, poison: bytes) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(GOOD + poison + GOOD.replace(b'"k": 1', b'"k": 2'))
    engine.execute(f"CREATE SOURCE shop TYPE debezium WITH (path = '{log}')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop USING LOG ON DEMAND")
    with pytest.raises(cq_engine.SourceError, match="no envelope") as error:
        engine.refresh_capture("c")
    assert f"at byte {len(GOOD)}" in error.value.detail
    with pytest.raises(cq_engine.CatalogError, match="has failed"):
        engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c RESUME")
    log.write_bytes(GOOD + b" " * (len(poison) - 5) + b"null\n" + GOOD.replace(b'"k": 1', b'"k": 2'))
    engine.refresh_capture("c")
    assert [row["k"] for row in here(engine)] == [1, 2]


def test_poison_is_put_aside(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"".join([GOOD, *POISON, GOOD.replace(b'"k": 1', b'"k": 2')]))
    engine.execute(f"CREATE SOURCE shop TYPE debezium WITH (path = '{tmp_path}/log.jsonl')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop USING LOG WITH (on_poison = 'dead_letter') ON DEMAND")
    engine.refresh_capture("c")
    assert [row["k"] for row in here(engine)] == [1, 2]
    dead = (
        engine.execute("SELECT file, start, reason, envelope FROM c_dead ORDER BY start")
        .to_arrow()
        .to_pylist()
    )
    assert [row["envelope"] for row in dead] == [p.decode("utf-8", "replace").rstrip("\n") for p in POISON]
    assert "no JSON" in dead[0]["reason"]
    assert dead[0]["start"] == len(GOOD)
    engine.execute("DROP CAPTURE c")
    with pytest.raises(cq_engine.CQError, match="c_dead"):
        engine.execute("SELECT * FROM c_dead")


VALUES = [
    ("int", "", 0, 5, 5),
    ("date", "io.debezium.time.Date", 0, 1, date(1970, 1, 2)),
    ("date", "", 0, "2026-02-03", date(2026, 2, 3)),
    ("timestamp", "io.debezium.time.Timestamp", 0, 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)),
    (
        "timestamp",
        "io.debezium.time.NanoTimestamp",
        0,
        10**9,
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc),
    ),
    ("timestamp", "io.debezium.time.ZonedTimestamp", 0, "2026-01-01T01:00:00+01:00", BEGIN),
    ("timestamp", "", 0, int(BEGIN.timestamp()) * 1000, BEGIN),
    ("timestamp", "", 0, int(BEGIN.timestamp()) * 10**6, BEGIN),
    ("timestamp", "", 0, int(BEGIN.timestamp()) * 10**9, BEGIN),
    ("timestamp_ntz", "io.debezium.time.MicroTimestamp", 0, 10**6, datetime(1970, 1, 1, 0, 0, 1)),  # noqa: DTZ001
    (
        "decimal(10,2)",
        "org.apache.kafka.connect.data.Decimal",
        2,
        unscaled(Decimal("-7.25")),
        Decimal("-7.25"),
    ),
    (
        "decimal(10,2)",
        "io.debezium.data.VariableScaleDecimal",
        0,
        {"scale": 1, "value": "Dw=="},
        Decimal("1.5"),
    ),
    ("decimal(10,2)", "", 0, 1.1, Decimal("1.1")),
    ("boolean", "", 0, 1, True),
    ("binary", "", 0, "AAE=", b"\x00\x01"),
    ("double", "", 0, "NaN", pytest.approx(float("nan"), nan_ok=True)),
    ("string", "", 0, {"a": 1}, '{"a": 1}'),
]


@pytest.mark.parametrize(("kind", "name", "scale", "given", "wanted"), VALUES)
def test_values(kind: str, name: str, scale: int, given: Any, wanted: Any) -> None:
    assert value_of({"x": given}, "x", Column("x", kind), {"x": (name, scale)}) == wanted


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("int", "five", "no int"),
        ("int", 1.5, "no int"),
        ("date", "tomorrow", "no date"),
        ("decimal(10,2)", "NaN", "no decimal"),
        ("string", "__debezium_unavailable_value", "REPLICA IDENTITY"),
    ],
)
def test_values_that_do_not_fit(kind: str, given: Any, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        value_of({"x": given}, "x", Column("x", kind), {})


def test_lines_that_say_nothing() -> None:
    assert read_line(b"null\n") is None
    assert read_line(b'{"schema": {}, "payload": null}\n') is None
    assert read_line(b'{"status": "END", "id": "571", "event_count": 2}\n') is None


@pytest.mark.parametrize(
    "line",
    [
        {"payload": 5},
        {"payload": [1]},
        {"op": "c", "after": {"k": 1, "d": None, "at": None, "s": None}, "source": "x"},
        {"op": "c", "after": {"k": 1, "d": None, "at": None, "s": None}, "transaction": "x"},
        {"schema": [1], "payload": {"op": "c", "after": {"k": 1}}},
        {"schema": {"fields": 5}, "payload": {"op": "c", "after": {"k": 1}}},
        {"op": "c", "after": {"k": 1, "d": 123456789.5, "at": None, "s": None}},
        {"op": "c", "after": {"k": None, "d": None, "at": None, "s": None}},
        {"op": "d", "before": {"k": None}},
        {"op": "c", "after": {"k": 1, "d": None, "at": None, "s": "\ud800"}},
        {"op": "c", "ts_ms": 1700000000000000000, "after": {"k": 1, "d": None, "at": None, "s": None}},
        "nested",
    ],
)
def test_whatever_is_no_envelope_is_put_aside(engine: Engine, tmp_path: Path, line: Any) -> None:
    """With where it stands and why; the lines around it count."""
    directory = tmp_path / "log"
    directory.mkdir()
    text = "[" * 100_000 if line == "nested" else json.dumps(line)
    good = [json.dumps({"op": "c", "after": {"k": k, "d": None, "at": None, "s": "x"}}) for k in (7, 8)]
    (directory / "a.jsonl").write_text(f"{good[0]}\n{text}\n{good[1]}\n")
    engine.execute(f"CREATE SOURCE shop TYPE debezium WITH (path = '{directory}')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop USING LOG WITH (on_poison = 'dead_letter') ON DEMAND")
    engine.execute("REFRESH CAPTURE c")
    assert engine.execute("SELECT k FROM t ORDER BY k").fetchall() == [(7,), (8,)]
    assert engine.execute("SELECT start FROM c_dead").fetchall() == [(len(good[0]) + 1,)]
