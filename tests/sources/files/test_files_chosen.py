"""Which files of a directory are read, when, and what is made of those that change or go."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import cq_engine
from cq_engine import Engine
from cq_engine.sources import files
from tests.sources.files.inbox import Row, declare, here, put


def test_files_that_are_hidden_or_being_written_are_left(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT", options="pattern = '*.csv'")
    engine.execute("ALTER SOURCE lake SET WITH (settled = '10 seconds')")
    for name in ("_a.csv", ".a.csv", "_tmp/a.csv", "a.txt", "empty.csv"):
        put(inbox / name, b"" if name == "empty.csv" else b"k\n1\n")
    (inbox / "now.csv").write_bytes(b"k\n2\n")
    put(inbox / "b.csv", b"k\n3\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(3,)]
    with (inbox / "now.csv").open("ab") as file:
        file.write(b"4\n")
    put(inbox / "empty.csv", b"k\n5\n")
    before = time.time() - 11
    os.utime(inbox / "now.csv", (before, before))
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,), (3,), (4,), (5,)]


def test_a_file_that_is_written_to_while_it_is_read(
    engine: Engine, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    put(inbox / "b.csv", b"k\n2\n")
    real = files.directory.Directory.stream

    def grow(self: Any, name: str) -> Any:
        stream = real(self, name)
        if name == "a.csv":
            (inbox / name).write_bytes(b"k\n1\n3\n")
        return stream

    monkeypatch.setattr(files.directory.Directory, "stream", grow)
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,)]
    monkeypatch.setattr(files.directory.Directory, "stream", real)
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (2,), (3,)]


def test_later_files_win(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT PRIMARY KEY, v STRING")
    put(inbox / "a.csv", b"k,v\n1,late\n", 20)
    put(inbox / "b.csv", b"k,v\n1,early\n", 10)
    engine.refresh_capture("c")
    assert here(engine, "k, v") == [(1, "late")]
    engine.execute("ALTER SOURCE lake SET WITH (order = 'name')")
    put(inbox / "c.csv", b"k,v\n1,first\n", 40)
    put(inbox / "d.csv", b"k,v\n1,second\n", 30)
    engine.refresh_capture("c")
    assert here(engine, "k, v") == [(1, "second")]


@pytest.mark.parametrize(
    ("option", "keys"), [("error", None), ("again", [(1, "b"), (2, "b")]), ("ignore", [(1, "a")])]
)
def test_a_file_that_has_changed(engine: Engine, inbox: Path, option: str, keys: list[Row] | None) -> None:
    declare(
        engine, inbox, "csv", columns="k INT PRIMARY KEY, v STRING", capture=f"WITH (changed = '{option}')"
    )
    put(inbox / "a.csv", b"k,v\n1,a\n")
    engine.refresh_capture("c")
    put(inbox / "a.csv", b"k,v\n1,b\n2,b\n", 5)
    if keys is None:
        with pytest.raises(cq_engine.SourceError, match="has changed after capture c had read it"):
            engine.refresh_capture("c")
        engine.execute("ALTER CAPTURE c SET WITH (changed = 'again')")
        engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine, "k, v") == (keys or [(1, "b"), (2, "b")])
    assert engine.refresh_capture("c").commit_versions == ()


def test_a_file_is_not_read_again_where_its_rows_are_not_known(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c SET WITH (changed = 'again')")
    put(inbox / "a.csv", b"k\n1\n2\n", 5)
    with pytest.raises(cq_engine.SourceError, match="has changed after"):
        engine.refresh_capture("c")
    assert here(engine, "k") == [(1,)]


def test_what_a_variable_stands_for_is_not_shown(
    engine: Engine, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (f"{inbox}/hush", "hush://x"):
        monkeypatch.setenv("CQ_IN", value)
        with pytest.raises(cq_engine.SourceError) as error:
            engine.execute("CREATE SOURCE lake TYPE csv WITH (path = '${CQ_IN}')")
        assert "hush" not in str(error.value)


def test_rows_that_are_left_out_count(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT", capture="WITH (on_poison = 'dead_letter')")
    put(inbox / "a.csv", b"k\n1,1\n2\nx\n1,2\n1,3\ny\n7\n8,8\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,), (7,)]
    assert here(engine, "row", "c_dead") == [(2,), (4,), (5,), (6,), (7,), (9,)]


def test_names_that_are_gone_are_forgotten(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    put(inbox / "b.csv", b"k\n5\n")
    engine.refresh_capture("c")
    (inbox / "a.csv").unlink()
    engine.refresh_capture("c")
    position = json.loads(engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]["position"])
    assert list(position["files"]) == ["b.csv"]
    put(inbox / "a.csv", b"k\n2\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (2,), (5,)]


def test_a_directory_that_is_away_for_a_while(engine: Engine, inbox: Path) -> None:
    """A share that is not mounted looks like a directory without files."""
    declare(engine, inbox, "csv", columns="k INT")
    put(inbox / "a.csv", b"k\n1\n")
    engine.refresh_capture("c")
    away = inbox.rename(inbox.with_name("away"))
    inbox.mkdir()
    engine.refresh_capture("c")
    inbox.rmdir()
    away.rename(inbox)
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,)]


def test_a_copy_whose_file_was_just_truncated(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", using="COPY", columns="k INT, PRIMARY KEY (k)")
    put(inbox / "a.csv", b"k\n1\n2\n")
    engine.refresh_capture("c")
    (inbox / "a.csv").write_bytes(b"")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (2,)]


def test_values_that_do_not_fit_are_those_of_their_rows(engine: Engine, inbox: Path) -> None:
    declare(
        engine,
        inbox,
        "json",
        columns="k INT, d DECIMAL(5, 2), s STRING",
        capture="WITH (on_poison = 'dead_letter')",
    )
    lines = [
        {"k": 1, "d": 1.5},
        {"k": 2, "d": 123456},
        {"k": 3, "d": 1.23456},
        {"k": 4, "s": "\ud800"},
        {"k": 5, "d": "1e100"},
        {"k": 6},
    ]
    put(inbox / "a.json", "".join(json.dumps(line) + "\n" for line in lines).encode())
    engine.refresh_capture("c")
    assert here(engine, "k") == [(1,), (6,)]
    letters = engine.execute("SELECT row FROM c_dead ORDER BY row").fetchall()
    assert letters == [(2,), (3,), (4,), (5,)]


def test_a_table_that_is_called_like_dead_letters_stays(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT")
    engine.execute("CREATE TABLE c_dead (x INT)")
    with pytest.raises(cq_engine.CQError, match="c_dead exists"):
        engine.execute("ALTER CAPTURE c SET WITH (on_poison = 'dead_letter')")
    engine.execute("DROP CAPTURE c")
    assert engine.execute("SELECT * FROM c_dead").fetchall() == []


def test_nothing_of_what_is_there(engine: Engine, inbox: Path) -> None:
    put(inbox / "a.csv", b"k\n1\n")
    declare(engine, inbox, "csv", columns="k INT", capture="WITH (initial = 'none')")
    engine.refresh_capture("c")
    put(inbox / "b.csv", b"k\n2\n")
    engine.refresh_capture("c")
    assert here(engine, "k") == [(2,)]


def test_directories_that_say_what_their_files_have(engine: Engine, inbox: Path) -> None:
    declare(engine, inbox, "csv", columns="k INT, year INT, s STRING", capture="")
    put(inbox / "year=2024" / "s=a%20b" / "x.csv", b"k\n1\n")
    put(inbox / "year=2025" / "y.csv", b"k,S\n2,c\n")
    engine.refresh_capture("c")
    assert here(engine, "k, year, s") == [(1, 2024, "a b"), (2, 2025, "c")]
