"""What SHOW says of continuous queries over tables that stay at their sources."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cq_engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.sources.remote.capture import figures
from cq_engine.sources.sql.model import Statement
from tests.sources.remote_pairs import create, declare, with_two
from tests.sources.shops import Shop


@pytest.fixture
def pair(places: Callable[[], Path]) -> Iterator[Shop]:
    yield from with_two(Shop("sqlite", f"sqlite:///{places()}"))


@pytest.fixture
def engine(opened: Callable[..., Engine], pair: Shop) -> Engine:
    made = opened(Limits())
    declare(made, pair)
    return made


def plans(engine: Engine) -> list[str]:
    """The plans of the refreshes, the oldest first."""
    rows = engine.execute("SHOW REFRESHES FOR q")
    place = rows.columns.index("plan")
    return [row[place] for row in rows.fetchall()][::-1]


def cost(plan: str) -> Counter[str]:
    """The figures of a plan, but for seconds."""
    return Counter({words: int(number) for number, words in re.findall(r"(\d+) ([a-z ]+)(?:, |$)", plan)})


def test_refreshes_say_what_they_cost_at_the_sources(engine: Engine, pair: Shop) -> None:
    create(engine)
    pair.run("UPDATE a SET b = 2 WHERE id = 1")
    engine.refresh("q")
    assert cost(plans(engine)[-1])["questions sent"] == 4  # of a and of x, two each
    assert cost(plans(engine)[-1])["keys shipped there"] == 8
    assert re.search(r"; 4 questions sent, .* seconds asking", plans(engine)[-1])
    pair.run("UPDATE b SET word = 'zwei' WHERE id = 2")
    engine.refresh("q")
    assert cost(plans(engine)[-1])["questions sent"] == 2


def test_refreshes_that_follow_later_share_what_was_counted(engine: Engine, pair: Shop) -> None:
    """Each has the figures of the commits that it has processed; what brought no commit goes with the next one."""
    create(engine)
    asked, versions = list[int](), list[int]()
    for sql in (
        "UPDATE a SET b = 2 WHERE id = 1",
        "INSERT INTO a (id, b) VALUES (9, 7)",  # joins nothing
        "INSERT INTO a (id, b) VALUES (10, 1)",
        "UPDATE b SET word = 'uno' WHERE id = 1",
    ):
        pair.run(sql)
        engine.refresh_capture("q_remote")
        status = engine.catalog.capture_status("q_remote")
        asked.append(figures(status.position)["last"]["messages"])
        versions.append(status.version)
    assert versions[0] == versions[1] < versions[2] < versions[3]
    for upto in (versions[0], versions[2], versions[3]):
        engine.queries.refreshes.refresh("q", upto)
    assert [cost(plan)["questions sent"] for plan in plans(engine)] == [
        asked[0],
        asked[1] + asked[2],
        asked[3],
    ]
    assert len(json.loads(engine.catalog.capture_status("q_remote").position)["figures"]["marks"]) == 3
    pair.run("DELETE FROM a WHERE id = 10")
    engine.refresh_capture("q_remote")  # the query has got further meanwhile
    assert len(json.loads(engine.catalog.capture_status("q_remote").position)["figures"]["marks"]) == 1


@pytest.fixture
def each(shop: Shop) -> Iterator[Shop]:
    yield from with_two(shop)


def test_where_it_stands_in_each_log(opened: Callable[..., Engine], each: Shop) -> None:
    """In words, also where the log is empty again, and with a transaction at the source that is still open."""
    engine = opened(Limits())
    declare(engine, each)
    create(engine)
    begin = read(engine)
    each.run("UPDATE a SET b = 2 WHERE id IN (1, 2)")
    engine.refresh("q")
    engine.refresh("q")
    if each.kind != "postgresql":
        assert (begin, read(engine)) == ("no change yet", "change 2")
    else:
        with each.database.write() as session:
            (number,) = session.one(Statement("SELECT txid_current()")) or (0,)
            each.run("UPDATE b SET word = 'zwei' WHERE id = 2")
            engine.refresh("q")
            assert str(number) in re.findall(r"\d+", read(engine))
        first, last = (int(re.findall(r"\d+", text)[0]) for text in (begin, read(engine)))
        assert first < number < last
    engine.execute("DROP CONTINUOUS QUERY q")


def read(engine: Engine) -> str:
    (row,) = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()
    return str(json.loads(row["position"])["read"]["shop"])
