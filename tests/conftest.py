"""What every test may ask for: one Spark for the whole run, and a place for a warehouse."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine.algebra.dialect  # noqa: F401 - raises the limit of recursion, which hypothesis forbids within a test
from cq_engine.api.upkeep import Upkeep
from cq_engine.launch.session import spark_session
from cq_engine.maintenance.maintenance import Maintenance
from tests import azure_store, google_store, mariadb, object_store, postgres
from tests.brokers import Server
from tests.object_store import Faults, ObjectStoreServer

# Thousands of small statements run once each: what the best compiler and concurrent collectors do costs more CPU time
# than it saves, on two cores about as much as all the rest. The processes that tests start have these options, too.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=512m -XX:ReservedCodeCacheSize=256m",
)
# Tests neither use what is in the user's cache nor put anything there; neither do the processes that they start.
os.environ["CQ_CLASS_ARCHIVE"] = "off"
os.environ["CQ_CALIBRATION"] = "off"

_PUBLISHING = frozenset({"api", "catalog", "data_source", "faults", "maintenance", "recovery", "storage"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that are marked long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the long tests out; `-m long --long` runs nothing else."""
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long") is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.get_closest_marker("long") is None]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The tuned local session, kept small: two cores, 2 GB."""
    session = spark_session({"spark.master": "local[2]", "spark.driver.memory": "2g"})
    yield session
    session.stop()


@pytest.fixture(scope="session")
def once(spark: SparkSession) -> SparkSession:
    """A session for statements over a few rows that run once: one stage, and nothing is compiled for it."""
    session = spark.newSession()
    for name, value in {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }.items():
        session.conf.set(name, value)
    return session


@pytest.fixture(autouse=True)
def unprepared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are prepared in the background only where a test is marked so: most queries here are refreshed once or twice."""
    if request.node.get_closest_marker("prepared") is None:
        monkeypatch.setattr(Maintenance, "note_query", lambda self, *names: None)


@pytest.fixture(autouse=True)
def unpublished(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of this process publish as they close in the tests of these rooms only: nobody looks at it in others."""
    if request.path.parent.name not in _PUBLISHING:
        monkeypatch.setattr(Upkeep, "_publish_last", lambda self: None)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """The path of a warehouse that does not exist yet."""
    return tmp_path / "warehouse"


def running(kind: ModuleType) -> Iterator[Any]:
    """What a module of servers gives of one that runs, or a skip with its reason."""
    problem = kind.missing()
    if problem:
        pytest.skip(problem)
    with kind.server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL, without a database, of a server that this test run starts."""
    yield from running(postgres)


@pytest.fixture
def fresh_postgres(postgres_server: str) -> Callable[[], str]:
    """Makes an empty database and gives its URL."""
    return lambda: postgres.fresh(postgres_server)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Server]:
    """A server that this test run starts; it runs, also where a test has killed it."""
    yield from running(mariadb)


@pytest.fixture
def fresh_mariadb(mariadb_server: Server) -> Callable[[], str]:
    """Makes an empty database and gives its URL."""
    return lambda: mariadb.fresh(mariadb_server)


@pytest.fixture(scope="session")
def object_store_server() -> Iterator[ObjectStoreServer]:
    """A server of S3 that this test run starts."""
    yield from running(object_store)


@pytest.fixture
def objects(object_store_server: ObjectStoreServer) -> Iterator[ObjectStoreServer]:
    """The server, without faults before the test and after it."""
    yield object_store_server
    object_store_server.fault(Faults())


@pytest.fixture
def bucket_url() -> str:
    """Where a warehouse can be on that server, and none is yet."""
    return f"s3://lake/{secrets.token_hex(6)}/warehouse"


@pytest.fixture(scope="session")
def google_access() -> Iterator[dict[str, str]]:
    """How a Google Cloud Storage is reached that this test run starts; it has the bucket `lake`."""
    yield from running(google_store)


@pytest.fixture(scope="session")
def azure_access() -> Iterator[dict[str, str]]:
    """How an Azure Blob Storage is reached that this test run starts; it has the container `lake`."""
    yield from running(azure_store)


@pytest.fixture(params=["google", "azure"])
def other_store(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """The URL of a warehouse that is not there yet, on a store that is not S3, and its options without `storage.` in front."""
    access: dict[str, str] = request.getfixturevalue(f"{request.param}_access")
    kind = {"google": google_store, "azure": azure_store}[request.param]
    return kind.url(f"{secrets.token_hex(6)}/warehouse"), access


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """None (SQLite in the warehouse), then the URL of an empty PostgreSQL database."""
    if request.param == "sqlite":
        return None
    fresh: Callable[[], str] = request.getfixturevalue("fresh_postgres")
    return fresh()
