"""A continuous query is a function of its tables: whatever depends on time, session or chance is refused at CREATE."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.algebra.dialect import parse_expression
from cq_engine.definition.volatile import is_plain

ARGUMENTS = {
    "java_method": "'java.util.UUID', 'randomUUID'",
    "reflect": "'java.util.UUID', 'randomUUID'",
    "try_reflect": "'java.util.UUID', 'randomUUID'",
    "shuffle": "array(k)",
    "randstr": "3",
    "uniform": "1, 2",
}
SUSPICIOUS = re.compile(
    r"current_.*|local(time|timestamp)|curdate|now|rand\w*|uuid|shuffle|uniform|(session_)?user|version"
    r"|input_file_.*|spark_partition_id|monotonically_.*|(try_)?reflect|java_method|unix_timestamp"
)
REFUSED = (
    "SELECT k, TIMESTAMP 'now' AS x FROM t",
    "SELECT k, DATE 'today' AS x FROM t",
    "SELECT k, CAST('now' AS TIMESTAMP) AS x FROM t",
    "SELECT k, CAST(' Tomorrow' AS DATE) AS x FROM t",
    "SELECT k, 'yesterday'::date AS x FROM t",
    "SELECT k, try_cast('now' AS timestamp_ntz) AS x FROM t",
    "SELECT k, to_date('today CET') AS x FROM t",
    "SELECT k, date('now') AS x, to_timestamp('now') AS y FROM t",
    "SELECT k FROM t WHERE d > 'today'",
    "SELECT k FROM t WHERE ts BETWEEN 'yesterday' AND TIMESTAMP '2020-01-01'",
    "SELECT k, nullif(d, 'today') AS x FROM t",
    "SELECT k, date_add('today', k) AS x FROM t",
    "SELECT k FROM t WHERE d = CAST(concat('to', 'day') AS DATE)",
    "SELECT k FROM t WHERE d = upper('today')",
    "SELECT k, extract(DAY FROM 'today') AS x, k AS y FROM t",
    "SELECT k, current_time AS x FROM t",
    "SELECT k, current_date AS x FROM t",
    "SELECT k, current_timestamp AS x FROM t",
    "SELECT k FROM t WHERE s = current_user",
    "SELECT k FROM t WHERE s = session_user",
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.s = user)",
    "SELECT k, aes_encrypt(s, '0000111122223333') AS x FROM t",
    "SELECT * FROM VALUES (current_user()) v(x)",
    "SELECT k FROM t WHERE s = current_user AND s <> '('",
    "SELECT k FROM t WHERE s = user AND s <> 'current_user('",
    f"SELECT {', '.join(f'k AS c{n}' for n in range(40))}, current_user AS x FROM t",
)
ALLOWED = (
    "SELECT k FROM t WHERE s = 'now'",
    "SELECT k, 'today' AS x, nullif(s, 'now') AS y FROM t WHERE s BETWEEN 'now' AND 'today'",
    "SELECT k, s LIKE '%rand(1)%' OR s = 'current_user()' AS x FROM t",
    "SELECT k, from_json(s, 'n DECIMAL(9,2)').n AS x FROM t WHERE s <> '('",
    "SELECT k FROM t WHERE s <> ') rand('",
    "SELECT k, user, version FROM named",
    "SELECT k FROM t WHERE ts > 'epoch' AND d > DATE '2020-01-01' AND d > '2020-01-01'",
    "SELECT k, unix_timestamp(ts) AS x, rand AS y FROM (SELECT k, ts, 1 AS rand FROM t)",
    "SELECT k, CAST(s AS DATE) AS x FROM t",
)


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cq_engine.Engine]:
    session = spark.newSession()
    session.conf.set("spark.sql.timeType.enabled", "true")
    path = tmp_path_factory.mktemp("volatile") / "w"
    with cq_engine.connect(path, spark=session, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (k INT PRIMARY KEY, s STRING, d DATE, ts TIMESTAMP)")
        opened.execute("CREATE TABLE named (k INT PRIMARY KEY, user STRING, version STRING)")
        yield opened


def refuse(engine: cq_engine.Engine, text: str) -> cq_engine.CQError | None:
    """The error of CREATE; None where the query was accepted."""
    try:
        engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {text}")
    except cq_engine.AnalysisError as error:
        return error
    engine.execute("DROP CONTINUOUS QUERY q")
    return None


def test_functions_of_spark(engine: cq_engine.Engine) -> None:
    names = [row[0] for row in engine.spark.sql("SHOW FUNCTIONS").collect()]
    wanted = [name for name in names if SUSPICIOUS.fullmatch(name)]
    assert len(wanted) > 25
    for name in wanted:
        error = refuse(engine, f"SELECT k, {name}({ARGUMENTS.get(name, '')}) AS x FROM t")
        assert error is not None, name
        assert "cannot stand in a continuous query" in str(error), error
        assert error.hint, name


def test_refused(engine: cq_engine.Engine) -> None:
    for text in REFUSED:
        error = refuse(engine, text)
        assert error is not None, text
        assert "cannot stand in a continuous query" in str(error), (text, error)


def test_allowed(engine: cq_engine.Engine) -> None:
    for text in ALLOWED:
        error = refuse(engine, text)
        assert error is None, (text, error)


def test_spark_is_asked_of_all_that_words_leave_open() -> None:
    others = ("k = r'now'", "k = X'6E6F77'", "k = :now", "s || 'w' = d", "f(k)")
    for text in (*REFUSED, *(f"SELECT k FROM t WHERE {each}" for each in others)):
        assert not is_plain(parse_expression(text)), text
    plain = "SELECT t.k, sum(u.v) AS n FROM t JOIN u ON t.k = u.k WHERE t.s = 'x' OR u.v > 1 GROUP BY t.k"
    assert is_plain(parse_expression(plain))
