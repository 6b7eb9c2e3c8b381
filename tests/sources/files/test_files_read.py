"""Directories of files as sources, against a model of who writes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cq_engine import Engine
from cq_engine.core import faults
from cq_engine.sources import files
from tests.sources.files.inbox import COLUMNS, KINDS, Crash, Writer, declare, here, put, text_of


@pytest.mark.parametrize("key", [", PRIMARY KEY (k)", ""], ids=["key", "no key"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_read_once(engine: Engine, inbox: Path, kind: str, key: str) -> None:
    writer = Writer(random.Random(7), kind, inbox)
    declare(engine, inbox, kind, columns=COLUMNS + key)
    for n in range(8):
        for _ in range(writer.dice.randint(0, 4)):
            writer.write(60 if n == 5 else 8)
        engine.refresh_capture("c")
        assert here(engine) == writer.wanted(bool(key))
        assert engine.refresh_capture("c").commit_versions == ()


@pytest.mark.parametrize("key", [", PRIMARY KEY (k)", ""], ids=["key", "no key"])
def test_a_large_file_does_not_go_through_the_driver_at_once(
    engine: Engine, inbox: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.readers, "_BLOCK_ROWS", 7)
    writer = Writer(random.Random(3), "json", inbox)
    declare(engine, inbox, "json", columns=COLUMNS + key)
    rows = [(n % 50, None, None, str(n)) for n in range(100)]
    put(inbox / "large.json", text_of("json", rows))
    done = engine.refresh_capture("c")
    writer.rows += rows
    assert here(engine) == writer.wanted(bool(key))
    assert len(done.commit_versions) == (7 if key else 1)


def test_a_large_file_goes_on_where_it_was(
    opened: Callable[..., Engine], inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.readers, "_BLOCK_ROWS", 7)
    engine = opened()
    declare(
        engine,
        inbox,
        "json",
        columns=COLUMNS + ", PRIMARY KEY (k)",
        capture="WITH (on_poison = 'dead_letter')",
    )
    lines = text_of("json", [(n % 50, None, None, str(n)) for n in range(100)]).splitlines(keepends=True)
    lines[3] = lines[60] = b"{\n"
    put(inbox / "large.json", b"".join(lines))
    left, point = [4], faults.point

    def crash(name: str, file: Path | None = None) -> None:
        left[0] -= name == "commit.after_catalog"
        if not left[0]:
            raise Crash
        point(name, file)

    monkeypatch.setattr(faults, "point", crash)
    with pytest.raises(Crash):
        engine.refresh_capture("c")
    monkeypatch.setattr(faults, "point", point)
    engine.close()
    engine = opened()
    engine.refresh_capture("c")
    assert dict(here(engine, "k, s")) == {n % 50: str(n) for n in range(100) if n not in (3, 60)}
    assert here(engine, "row", "c_dead") == [(4,), (61,)]


POINTS = ["commit.begin", "commit.staged", "commit.before_catalog", "commit.after_catalog"]


@pytest.mark.parametrize("point", POINTS)
def test_kills(
    opened: Callable[..., Engine], inbox: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, real = Writer(random.Random(5), "csv", inbox), faults.point
    engine = opened()
    declare(engine, inbox, "csv")
    for _ in range(3):
        for _ in range(6):
            writer.write()

        def crash(name: str, file: Path | None = None) -> None:
            if name == point:
                raise Crash
            real(name, file)

        monkeypatch.setattr(faults, "point", crash)
        with pytest.raises(Crash):
            engine.refresh_capture("c")
        monkeypatch.setattr(faults, "point", real)
        engine.close()
        engine = opened()
        engine.refresh_capture("c")
        assert here(engine) == writer.wanted(key=False)
