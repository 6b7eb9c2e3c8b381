"""The tuned session: what is set, who wins, and what a second one does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.sql import SparkSession, functions

from cq_engine.core.errors import CQError
from cq_engine.launch import session as session_module
from cq_engine.launch.session import spark_session, warm
from cq_engine.launch.settings import settings_for

SETTINGS = settings_for("local[2]")


def test_the_settings_are_in_force(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.driver.memory") == "2g"


def test_a_column_costs_a_call_or_two_to_the_jvm(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark would note the caller's file and line with each, in half a dozen calls more."""
    calls = []
    send = ClientServerConnection.send_command

    def counted(self: ClientServerConnection, command: str) -> str:
        calls.append(command)
        return str(send(self, command))

    functions.col("known")
    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    for number in range(20):
        functions.col(f"c{number}")
    assert 20 <= len(calls) <= 90, calls[:12]


def test_an_sql_error_prints_nothing(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.sql("SELECT 1 / id FROM range(3)").collect()
    assert capfd.readouterr() == ("", "")


def test_a_second_session_shares_spark_and_leaves_the_first_alone(spark: SparkSession) -> None:
    second = spark_session({"spark.sql.shuffle.partitions": "7"})
    assert second.conf.get("spark.sql.shuffle.partitions") == "7"
    assert spark.conf.get("spark.sql.shuffle.partitions") == SETTINGS["spark.sql.shuffle.partitions"]
    assert second.sparkContext is spark.sparkContext
    second.range(1).createOrReplaceTempView("only_in_the_second")
    assert not spark.catalog.tableExists("only_in_the_second")


def test_a_running_spark_refuses_what_only_a_start_can_set(spark: SparkSession) -> None:
    assert spark_session({"spark.driver.memory": "2g"}) is not spark
    with pytest.raises(CQError, match=r"spark\.driver\.memory cannot become '3g' now"):
        spark_session({"spark.driver.memory": "3g"})


def test_warming_runs_a_query(spark: SparkSession) -> None:
    warm(spark)


@pytest.mark.parametrize(("machine_gib", "mib"), [(1, 1024), (10, 4096), (64, 8192)])
def test_driver_memory_follows_the_machine(
    monkeypatch: pytest.MonkeyPatch, machine_gib: int, mib: int
) -> None:
    monkeypatch.setattr(session_module, "memory_bytes", lambda: machine_gib * 2**30)
    assert session_module._driver_memory_mib() == mib


def test_the_loopback_address_is_for_local_masters_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("run")
    assert "spark.driver.host" in session_module._start_settings(directory, "local[2]")
    assert "spark.driver.host" not in session_module._start_settings(directory, "spark://host:7077")


def test_a_session_started_ahead_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[SimpleNamespace] = []

    def start(conf: object) -> SimpleNamespace:
        running.append(SimpleNamespace(sparkContext=object(), createDataFrame=lambda *_: None))
        return running[-1]

    monkeypatch.setattr(session_module, "_running", lambda: running[-1] if running else None)
    monkeypatch.setattr(session_module, "_start", start)
    monkeypatch.setattr(session_module, "_sibling", lambda spark, conf: ("beside", spark))
    session_module.prestart({"spark.a": "1"})
    assert spark_session({"spark.a": "1"}) is running[0]
    assert spark_session({"spark.a": "1"}) == ("beside", running[0])
    session_module.prestart({"spark.a": "1"})
    assert len(running) == 1
    running.clear()
    session_module.prestart({"spark.a": "1"})
    assert spark_session({"spark.a": "2"}) == ("beside", running[0])


def test_a_start_ahead_that_fails_leaves_the_error_to_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(conf: object) -> object:
        raise CQError("no Java")

    monkeypatch.setattr(session_module, "_running", lambda: None)
    monkeypatch.setattr(session_module, "_start", fails)
    session_module.prestart({})
    with pytest.raises(CQError, match="no Java"):
        spark_session({})
