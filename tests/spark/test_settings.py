"""Refreshes that share a session: each runs under its own settings, and the session is left as it was."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cq_engine import CQError
from cq_engine.core.limits import Limits
from cq_engine.spark.settings import (
    SMALL_SETTINGS,
    few_rows_session,
    meaning,
    small_settings,
    wide_settings,
    writer,
)

ZONE = "spark.sql.session.timeZone"


def test_small_settings_are_put_back_by_the_last_block(spark: SparkSession) -> None:
    before = {name: spark.conf.get(name) for name in SMALL_SETTINGS}
    first, second = small_settings(spark), small_settings(spark)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    second.__exit__(None, None, None)
    assert {name: spark.conf.get(name) for name in SMALL_SETTINGS} == before


def test_the_innermost_block_counts_in_any_order_of_ends(spark: SparkSession) -> None:
    session = spark.newSession()
    limits = Limits(shuffle_bytes=1000)
    session.conf.set("spark.sql.adaptive.enabled", "false")
    names = (*SMALL_SETTINGS, "spark.sql.adaptive.coalescePartitions.initialPartitionNum")
    before = {name: session.conf.get(name, None) for name in names}

    def found() -> tuple[str | None, ...]:
        return tuple(session.conf.get(name, None) for name in names)

    for seed in range(20):
        rng, open_blocks = random.Random(seed), []
        for _ in range(12):
            if open_blocks and rng.random() < 0.5:
                open_blocks.pop(rng.randrange(len(open_blocks)))[0].__exit__(None, None, None)
            else:
                size = rng.choice([None, 50_000, 900_000])
                block = small_settings(session) if size is None else wide_settings(session, size, limits)
                block.__enter__()
                open_blocks.append((block, size))
            sizes = [size for _, size in open_blocks]
            if sizes:
                assert found()[0] == ("false" if sizes[-1] is None else "true")
                assert found()[1] == ("1" if None in sizes else before[names[1]])
                widths = [size // 1000 for size in sizes if size is not None]
                assert found()[2] == (str(widths[-1]) if widths else before[names[2]])
            else:
                assert dict(zip(names, found())) == before
        for block, _ in open_blocks:
            block.__exit__(None, None, None)
        assert dict(zip(names, found())) == before


def test_shuffles_are_as_wide_as_their_input_is_large(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.coalescePartitions.minPartitionSize", "1b")
    session.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "1b")
    session.conf.set("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
    tasks = []
    for size in (3_000, 30_000):
        with wide_settings(session, size, Limits(shuffle_bytes=1000)):
            rows = (
                session.range(2000)
                .groupBy(f.expr("id % 1000"))
                .count()
                .select(f.spark_partition_id().alias("part"))
            )
            tasks.append(rows.distinct().count())
    assert tasks == [3, 30]


def test_a_block_that_changes_the_meaning_runs_alone(spark: SparkSession) -> None:
    before = spark.conf.get(ZONE)
    running: list[str] = []
    together = threading.Barrier(2)

    def one(zone: str, *, wait: bool) -> str:
        with meaning(spark, {ZONE: zone}):
            if wait:
                together.wait(timeout=30)  # two blocks with the session's own settings meet here
            running.append(zone)
            alone = len(set(running)) == 1 or zone == before
            running.remove(zone)
            return spark.conf.get(ZONE) if alone else "not alone"

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(one, before, wait=True) for _ in range(2)]
        found += [pool.submit(one, "Asia/Tokyo", wait=False) for _ in range(4)]
        zones = [each.result(timeout=60) for each in found]
    assert zones == [before] * 2 + ["Asia/Tokyo"] * 4
    assert spark.conf.get(ZONE) == before


def test_variants_are_never_shredded(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.variant.writeShredding.enabled", "true")
    writer(session.sql("SELECT 1 AS id"))
    nested = session.sql("SELECT 1 AS id, array(parse_json('1')) AS v")
    with pytest.raises(CQError, match="VARIANT columns in shredded form"):
        writer(nested)
    session.conf.set("spark.sql.variant.writeShredding.enabled", "false")
    writer(nested)


def test_a_session_for_few_rows_means_the_same(spark: SparkSession) -> None:
    given = spark.newSession()
    given.conf.set("spark.sql.session.timeZone", "Pacific/Apia")
    given.conf.set("spark.sql.ansi.enabled", "false")
    given.conf.set("spark.sql.optimizer.excludedRules", "org.example.Rule")
    before = dict(given.conf.getAll)
    beside = few_rows_session(given)
    assert beside.conf.get("spark.sql.session.timeZone") == "Pacific/Apia"
    assert beside.conf.get("spark.sql.ansi.enabled") == "false"
    assert beside.conf.get("spark.sql.codegen.wholeStage") == "false"
    assert "org.example.Rule," in beside.conf.get("spark.sql.optimizer.excludedRules", "")
    assert dict(given.conf.getAll) == before
    assert few_rows_session(given) is beside
    given.conf.set("spark.sql.ansi.enabled", "true")
    assert few_rows_session(given).conf.get("spark.sql.ansi.enabled") == "true"
