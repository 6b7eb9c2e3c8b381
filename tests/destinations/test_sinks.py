"""Types of destinations that packages bring: how they are found, what is refused, and that the contract suite can fail."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import AnalysisError, DestinationError
from cq_engine.destinations import (
    Callbacks,
    DeltaBatch,
    Option,
    Sink,
    check_declared,
    class_of,
    installed,
    reach,
    resolve,
)
from cq_engine.destinations.contract import Line, SinkContract, SinkSubject, World
from cq_engine.destinations.contract.suite import DestinationContract
from cq_engine.grammar.clauses import DestinationRef
from tests.limits import limit

Package = Callable[..., Path]

GOOD = """
from cq_engine.destinations import Option, Sink, count
class Good(Sink):
    OPTIONS = {"size": Option("3", count, "write a number"), "token": Option("", str, "write ${NAME}", secret=True)}
    def check(self):
        if self.options["size"] == "13":
            raise OSError("13 is refused")
    def write(self, batch): ...
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """package(name, code, type="module:Class", ...): it is installed."""
    monkeypatch.setattr(installed, "_loaded", {})
    monkeypatch.setattr(installed, "_told", set())
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name: str, code: str = "", **types: str) -> Path:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (site / f"{name}.py").write_text(code)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{kind} = {value}\n" for kind, value in types.items())
        (info / "entry_points.txt").write_text(f"[{installed.GROUP}]\n{lines}")
        return info

    return install


def declare(kind: str, **options: str) -> DeclaredDestination:
    return DeclaredDestination("d", kind.upper(), tuple(options.items()))


def refusal(kind: str, **options: str) -> str:
    with pytest.raises((AnalysisError, DestinationError)) as raised:
        check_declared(declare(kind, **options))
    return f"{raised.value.message}; {raised.value.detail}; {raised.value.hint}"


def test_a_type_is_found_by_its_name_and_imported_when_it_is_named(package: Package) -> None:
    package("one", GOOD, Good="one:Good")
    package("broken", "raise RuntimeError", other="broken:Other")
    check_declared(declare("webhook", url="http://x"))
    assert class_of(DestinationRef("d", "GOOD")).background
    assert "one" not in sys.modules
    check_declared(declare("good", size="4", max_attempts="2"))
    assert "one" in sys.modules
    assert "broken" not in sys.modules


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "many"}, "size = 'many' is not possible; ; write a number"),
        ({"siez": "1"}, "there is no option siez of a destination of type good"),
        ({"token": "clear"}, "token = 'clear' is not possible"),
    ],
)
def test_options_are_checked_as_the_class_says(
    package: Package, options: Mapping[str, str], said: str
) -> None:
    package("one", GOOD, good="one:Good")
    assert said in refusal("good", **options)


def test_what_the_target_and_the_variables_refuse(
    package: Package, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package("one", GOOD, good="one:Good")
    with pytest.raises(DestinationError, match="good d: OSError: 13 is refused"):
        reach(declare("good", size="13"), world.services)
    check_declared(declare("good", size="${SIZE}", token="${TOKEN}"))
    with pytest.raises(DestinationError, match="variable SIZE is not set"):
        reach(declare("good", size="${SIZE}"), world.services)
    monkeypatch.setenv("SIZE", "hunter2")
    with pytest.raises(DestinationError) as raised:
        reach(declare("good", size="${SIZE}"), world.services)
    assert "${SIZE} is not possible for size" in raised.value.message
    assert "hunter2" not in str(raised.value)
    monkeypatch.setenv("SIZE", "5")
    reach(declare("good", size="${SIZE}"), world.services)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "AttributeError"),
        ("Bad = dict", "is no subclass of cq_engine.destinations.Sink"),
        ("from cq_engine.destinations import Sink\nclass Bad(Sink): ...", "Bad has no method write"),
        (GOOD + "class Bad(Good): OPTIONS = {'backoff': Good.OPTIONS['size']}", "which is the engine's own"),
        (GOOD + "class Bad(Good): OPTIONS = {'size': 3}", "is no Option"),
        (GOOD + "class Bad(Good): OPTIONS = None", "is no mapping"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(package: Package, code: str, said: str) -> None:
    package("bad", code, bad="bad:Bad")
    message = refusal("bad")
    assert message.startswith("type bad of package bad 1.0 cannot be used: ")
    assert said in message
    assert "its entry point is bad:Bad" in message


def test_two_packages_with_one_type_are_refused(package: Package) -> None:
    package("one", GOOD, good="one:Good")
    package("two", GOOD, GOOD="two:Good")
    assert refusal("good") == (
        "2 packages have a type good of destinations; one 1.0 and two 1.0; uninstall one of them"
    )


def test_the_engines_own_types_win(package: Package, caplog: pytest.LogCaptureFixture) -> None:
    package("one", GOOD, good="one:Good", webhook="one:Good", kafka="one:Good")
    with caplog.at_level(logging.WARNING):
        check_declared(declare("good"))
        check_declared(declare("webhook", url="http://x"))
        assert "a destination of type kafka needs the option url" in refusal("kafka")
    assert sorted(r.getMessage() for r in caplog.records) == [
        "destinations of type kafka are the engine's own, not those of one 1.0",
        "destinations of type webhook are the engine's own, not those of one 1.0",
    ]


def test_a_type_that_no_package_has(package: Package, world: Any) -> None:
    package("one", GOOD, good="one:Good")
    message = refusal("goood")
    assert "there is no type goood of destinations" in message
    assert "good" in message.split("; ")[2]
    reference = DestinationRef("d", "GONE")
    with pytest.raises(DestinationError, match="no package in this process has destinations of type gone"):
        resolve(world.services, world.query, reference, Callbacks())


# ---------------------------------------------------------------- the suite


class ByKey(Sink):
    """Rows of SQLite, which has the keys of the batches, too."""

    OPTIONS: ClassVar[Mapping[str, Option]] = {"file": Option(None, str, "write a path")}
    exactly_once = True

    def open(self) -> None:
        self.connection = sqlite3.connect(self.options["file"])
        self.connection.execute("CREATE TABLE IF NOT EXISTS keys (key PRIMARY KEY)")
        self.connection.execute("CREATE TABLE IF NOT EXISTS rows (v, m, id)")
        self.connection.commit()

    def write(self, batch: DeltaBatch) -> None:
        with self.connection as transaction:
            key = repr(batch.idempotency_key)
            if transaction.execute("INSERT OR IGNORE INTO keys VALUES (?)", [key]).rowcount:
                rows = [(d.commit_version, d.marker, (d.new or d.old or ())[0]) for d in batch]
                transaction.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        self.connection.close()


class TestExactlyOnce(SinkContract):
    sink = ByKey

    def options(self, target: Path) -> dict[str, str]:
        return {"file": str(target / "rows.db")}

    def received(self, target: Path) -> list[Line]:
        if not (target / "rows.db").exists():
            return []
        connection = sqlite3.connect(target / "rows.db")
        try:
            return connection.execute("SELECT v, m, id FROM rows ORDER BY rowid").fetchall()
        finally:
            connection.close()

    def break_down(self, target: Path) -> None:
        (target / "rows.db").mkdir()

    def repair(self, target: Path) -> None:
        (target / "rows.db").rmdir()


class InMemory(Sink):
    """What wrong sinks are made of."""

    got: ClassVar[list[Line]] = []

    def lines(self, batch: DeltaBatch) -> list[Line]:
        return [(d.commit_version, d.marker, (d.new or d.old or ())[0]) for d in batch]

    def write(self, batch: DeltaBatch) -> None:
        self.got.extend(self.lines(batch))


class Buffers(InMemory):
    """Durable only when it is closed."""

    def open(self) -> None:
        self.buffer: list[Line] = []

    def write(self, batch: DeltaBatch) -> None:
        self.buffer += self.lines(batch)

    def close(self) -> None:
        self.got.extend(self.buffer)
        self.buffer = []


class Claims(InMemory):
    """Says exactly once, and takes what comes."""

    exactly_once = True


class Forgets(InMemory):
    def write(self, batch: DeltaBatch) -> None:
        if batch.last:
            super().write(batch)


@pytest.mark.parametrize(
    ("of", "point"),
    [(Buffers, "deliver.after_cursor"), (Claims, "deliver.before_cursor"), (Forgets, "deliver.begin")],
)
def test_the_suite_fails_for_what_breaks_the_contract(
    world: World, of: type[InMemory], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(sink: type[InMemory]) -> None:
        monkeypatch.setattr(InMemory, "got", [])
        subject = SinkSubject(
            world, sink, {}, received=lambda: list(sink.got), break_down=lambda: None, repair=lambda: None
        )
        DestinationContract().test_a_crash_loses_nothing(subject, monkeypatch, point, 2)

    limit(world, batch_deltas=2)
    run(InMemory)
    world.define()
    with pytest.raises(AssertionError):
        run(of)
