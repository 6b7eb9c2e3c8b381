"""The parts of the command that runs acceptance cases on a cluster, over a runner and an adapter that stand for theirs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import cases_on_cluster, postgres
from tests.cases_on_cluster import Warehouses, _arguments, prepared
from tests.object_store import ObjectStoreServer

RUNNER = """
import sys
def load_adapter(spec): raise AssertionError("the adapter is given")
def main():
    made = load_adapter(None)()
    made.open()
    return made.open(), sys.argv
"""
ADAPTER = """
import cq_engine
def _shared_spark(): raise AssertionError("the session is given")
class CqEngine:
    def open(self):
        return cq_engine.connect("/tmp/cq_case_7", spark=_shared_spark(), scheduler=False)
"""


@pytest.mark.parametrize(
    ("given", "limits", "arguments"),
    [
        (["place"], "DEFAULT", []),
        (["place", "--", "--batch"], "DEFAULT", ["--batch"]),
        (["place", "--limits", "EXECUTORS", "--", "--interval", "3"], "EXECUTORS", ["--interval", "3"]),
        (["--limits", "EXECUTORS", "place", "--"], "EXECUTORS", []),
    ],
)
def test_arguments_of_both(given: list[str], limits: str, arguments: list[str]) -> None:
    own, others = _arguments(given)
    assert (own.cases, own.limits, others) == (Path("place"), limits, arguments)


def test_what_the_adapter_opens_is_on_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the bucket, with a database of its own, in the session that is there; the database before it is gone."""
    (tmp_path / "run_cases.py").write_text(RUNNER)
    (tmp_path / "cq_adapter.py").write_text(ADAPTER)
    for name in ("run_cases", "cq_adapter"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    numbers = iter((1, 2))
    dropped: list[str] = []
    monkeypatch.setattr(postgres, "fresh", lambda url: f"{url}/db{next(numbers)}")
    monkeypatch.setattr(Warehouses, "_drop", lambda _, url: dropped.append(url))
    opened = SimpleNamespace(connect=lambda *where, **more: (where, more))
    monkeypatch.setattr(cases_on_cluster, "cq_engine", opened)
    spark: Any = object()
    limits: Any = object()
    store = ObjectStoreServer(1)
    run = prepared(tmp_path, Warehouses(store, "postgresql://there", limits, spark))
    ((where, more), _) = run()
    assert where == ("s3://lake/cq_case_7", "postgresql://there/db2")
    assert more == {"spark": spark, "scheduler": False, "conf": store.options, "limits": limits}
    assert dropped == ["postgresql://there/db1"]
    for name in ("run_cases", "cq_adapter"):
        assert importlib.import_module(name).__file__ == str(tmp_path / f"{name}.py")


@pytest.mark.postgres
def test_the_database_of_a_case_goes(postgres_server: str) -> None:
    nothing: Any = None
    places = Warehouses(nothing, postgres_server, nothing, nothing)
    url = postgres.fresh(postgres_server)
    with postgres.connected(url):  # somebody is still there
        places._drop(url)
    with postgres.connected(f"{postgres_server}/postgres") as connection:
        name = url.rpartition("/")[2]
        assert connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchall() == []
