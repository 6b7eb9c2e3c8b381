"""What the tests of the prompt share: a shell over a fake engine, and no trace in the user's own directories."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cq_engine
from cq_engine import cli
from cq_engine.launch import prestart as ahead
from cq_engine.repl.background import Opening
from cq_engine.repl.shell import Shell

FAKE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """History and logs go to a temporary directory."""
    directory = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    return directory


@pytest.fixture(scope="session")
def fake() -> Iterator[ModuleType]:
    """The module `fake_engine`, which stands beside the tests and in no package."""
    spec = importlib.util.spec_from_file_location("fake_engine", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_engine"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fake_engine"]


@pytest.fixture
def engine(fake: ModuleType, tmp_path: Path) -> Any:
    return fake.FakeEngine(str(tmp_path))


class Recorded(Shell):
    """A shell that keeps what it writes."""

    out: io.StringIO
    err: io.StringIO

    @property
    def output(self) -> str:
        return self.out.getvalue()

    @property
    def errors(self) -> str:
        return self.err.getvalue()


@pytest.fixture
def make_shell(tmp_path: Path) -> Callable[[Callable[[], Any]], Recorded]:
    def make(connect: Callable[[], Any]) -> Recorded:
        out, err = io.StringIO(), io.StringIO()
        shell = Recorded(Opening(connect), str(tmp_path), out=out, err=err)
        shell.out, shell.err = out, err
        return shell

    return make


@pytest.fixture
def shell(engine: Any, make_shell: Callable[[Callable[[], Any]], Recorded]) -> Recorded:
    made = make_shell(lambda: engine)
    made.opening.engine()
    return made


@pytest.fixture
def cq(fake: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """`cq` in this process, in a directory of its own."""
    monkeypatch.setattr(cq_engine, "connect", fake.connect, raising=False)
    monkeypatch.setattr(ahead, "start_spark", lambda conf: None)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: cli.main(arguments)
