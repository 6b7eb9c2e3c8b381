"""A machine in trouble: background refreshes are tried again and say so, and end up where they should."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any

import pytest

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core import faults
from cq_engine.core.limits import Limits
from tests.recovery.conftest import LONG
from tests.waiting import until

Connect = Callable[..., Engine]
QUICK = Limits(retry_seconds=0.05, retry_most_seconds=0.2)
POINTS = ("refresh.begin", "refresh.computed", "refresh.before_catalog")


class Trouble:
    """While `error` is set, every refresh meets it at `point`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        self.error: Exception | None = None
        self.met = 0
        self.point = point
        monkeypatch.setattr(faults, "point", self._reached)

    def _reached(self, name: str, *_: object) -> None:
        if name == self.point and self.error is not None:
            self.met += 1
            raise self.error


def rows(engine: Engine, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = engine.execute(sql).to_arrow().to_pylist()
    return found


def prepare(engine: Engine, *queries: str) -> None:
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    for number, text in enumerate(queries or ("SELECT id, v FROM t",)):
        engine.execute(f"CREATE CONTINUOUS QUERY q{number} AS {text}")


def insert(engine: Engine, number: int, value: int = 1) -> None:
    with engine.transaction() as tx:
        tx.insert("t", [{"id": number, "v": value}])


@pytest.mark.parametrize("point", POINTS)
def test_after_a_full_disk_a_query_comes_up_to_date_by_itself(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    engine = connect(limits=QUICK)
    prepare(engine)
    trouble = Trouble(monkeypatch, point)
    trouble.error = OSError(errno.ENOSPC, "No space left on device")
    insert(engine, 1)
    until(lambda: trouble.met >= 3)
    until(lambda: engine.describe("q0").error)
    (shown,) = rows(engine, "SHOW CONTINUOUS QUERIES")
    (failed,) = rows(engine, "SHOW REFRESHES FOR q0")
    facts = dict(engine.execute("DESCRIBE q0").fetchall())
    assert (shown["state"], facts["state"], engine.describe("q0").state) == ("ACTIVE",) * 3
    for text in (shown["error"], failed["error"], facts["error"], engine.describe("q0").error):
        assert "No space left on device" in text
        assert "next try at" in text
    assert (failed["query"], failed["from_version"], failed["to_version"]) == ("q0", 0, 0)
    trouble.error = None
    until(lambda: engine.describe("q0").position == 1)
    until(lambda: not engine.describe("q0").error)
    (done,) = rows(engine, "SHOW REFRESHES")
    assert (done["inserted"], done["error"]) == (1, "")
    assert [[d.new for d in engine.deltas("q0")]] == [[(1, 1)]]


def test_a_refresh_in_the_foreground_says_it_and_ends_the_pause(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(limits=Limits(retry_seconds=1000, retry_most_seconds=1000))
    prepare(engine)
    trouble = Trouble(monkeypatch, "refresh.computed")
    trouble.error = cq_engine.ConflictError("somebody was faster")
    insert(engine, 1)
    until(lambda: engine.describe("q0").error)
    with pytest.raises(cq_engine.ConflictError):
        engine.refresh("q0")
    assert engine.describe("q0").state == "ACTIVE"
    trouble.error = None
    assert engine.refresh("q0").inserted == 1
    assert engine.describe("q0").error == ""
    insert(engine, 2)
    engine.drain(timeout=LONG)
    assert engine.describe("q0").position == 2


@pytest.mark.parametrize("error", [KeyError("_w"), OSError("Couldn't deserialize thrift")], ids=repr)
def test_what_does_not_pass_is_not_tried_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    engine = connect(limits=QUICK)
    prepare(engine)
    trouble = Trouble(monkeypatch, "refresh.computed")
    trouble.error = error
    insert(engine, 1)
    until(lambda: engine.describe("q0").state == "FAILED")
    assert type(error).__name__ in engine.describe("q0").error
    assert "next try" not in engine.describe("q0").error
    time.sleep(0.3)
    assert trouble.met == 1
    trouble.error = None
    engine.execute("ALTER CONTINUOUS QUERY q0 RESUME")
    engine.drain(timeout=LONG)
    assert engine.describe("q0").position == 1


def test_an_error_of_the_data_fails_the_query_at_once(connect: Connect) -> None:
    engine = connect(limits=QUICK)
    prepare(engine, "SELECT id, 10 / v AS share FROM t", "SELECT id FROM t")
    insert(engine, 1, 0)
    until(lambda: engine.describe("q0").state == "FAILED")
    until(lambda: engine.describe("q1").position == 1)
    assert "next try" not in engine.describe("q0").error
