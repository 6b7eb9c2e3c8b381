"""A restricted engine: whatever in Spark SQL runs code, reads files or the environment is refused, however it is spelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.context.rights import Rights
from cq_engine.core.errors import AnalysisError, CQError
from cq_engine.core.options import OPTIONS

ARGUMENTS = "'java.lang.System', 'getProperty', 'user.home'"
SPELLINGS = (
    f"reflect({ARGUMENTS})",
    f"JAVA_METHOD ({ARGUMENTS})",
    f"`try_reflect`({ARGUMENTS})",
    f"Reflect/* '( */\n({ARGUMENTS})",
    f"system.builtin.reflect({ARGUMENTS})",
)
CONTEXTS = (
    "SELECT {} AS x",
    "SELECT k, {} AS x FROM t",
    "SELECT k FROM t WHERE {} = 'a'",
    "SELECT upper(concat('a', {})) AS x FROM t",
    "SELECT (SELECT {}) AS x",
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM t b WHERE b.s = {})",
    "SELECT k FROM t WHERE s IN (SELECT {} FROM t)",
    "WITH c AS (SELECT {} AS x) SELECT * FROM c",
    "WITH c AS (SELECT {} AS x) SELECT 1 AS y",
    "WITH c AS (WITH d AS (SELECT {} AS x) SELECT * FROM d) SELECT * FROM c",
    "SELECT transform(array(1), e -> {}) AS x",
    "SELECT count(*) AS c FROM t GROUP BY {}",
    "SELECT count(*) AS c FROM t GROUP BY ROLLUP({})",
    "SELECT max(s) OVER (PARTITION BY {}) AS x FROM t",
    "SELECT max(s) OVER w AS x FROM t WINDOW w AS (PARTITION BY {})",
    "SELECT a.k FROM t a JOIN t b ON a.s = {}",
    "SELECT CASE WHEN k = 1 THEN {} ELSE 'b' END AS x FROM t",
    "SELECT named_struct('a', array(map('b', {}))) AS x",
    "SELECT s FROM t UNION ALL SELECT {}",
    "FROM t |> SELECT {} AS x",
    "SELECT * FROM t LATERAL VIEW explode(array({})) e AS x",
    "SELECT count(*) FILTER (WHERE {} = 'a') AS c FROM t",
    "SELECT * FROM t, LATERAL (SELECT {} AS x)",
    "SELECT " + "k, " * 60 + "{} AS x FROM t",
    "INSERT INTO t SELECT 9, {}",
    "UPDATE t SET s = {}",
    "DELETE FROM t WHERE s = {}",
    "MERGE INTO t USING (SELECT 1 AS k, {} AS s) u ON t.k = u.k WHEN MATCHED THEN UPDATE SET s = u.s",
    "CREATE TABLE n AS SELECT {} AS x",
    "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT k, {} AS x FROM t",
    "EXPLAIN SELECT {} AS x",
)
BY_TREE = (
    "VALUES ({})",
    "SELECT * FROM VALUES ({}) v(x)",
    "INSERT INTO t VALUES (9, {})",
    "CREATE FUNCTION f(a STRING) RETURN {}",
    "CREATE FUNCTION f(a STRING) RETURN (SELECT concat({}, a))",
    "CREATE FUNCTION f(a STRING DEFAULT {}) RETURNS STRING RETURN a",
)
"""Where Spark refuses them anyway, or where only the tree is asked."""
REFUSED = (
    "SELECT input_file_name() AS x FROM t",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd')) AS x",
    "SELECT schema_of_xml('<a/>') AS x",
    "SELECT from_avro(CAST(s AS BINARY), '\"int\"', map('avroSchemaUrl', 'file:///etc/passwd')) AS x FROM t",
    "SELECT from_protobuf(CAST(s AS BINARY), 'M', '/etc/passwd') AS x FROM t",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM IDENTIFIER('csv.`/etc/passwd`')",
    "SELECT IDENTIFIER('k') FROM t",
)
NO_QUERIES = (
    "SELECT * FROM csv.`/etc/passwd`",
    "SELECT * FROM t JOIN text.`/etc/passwd`",
    "SELECT * FROM `org.apache.spark.sql.execution.datasources.text.TextFileFormat`.`/etc/passwd`",
    "SELECT * FROM (TABLE csv.`/etc/passwd`)",
    "SELECT * FROM global_temp.t",
    "SELECT IDENTIFIER('upper')(s) FROM t",
    f"SELECT * FROM t TIMESTAMP AS OF system.builtin.reflect({ARGUMENTS})",
    "SELECT TRANSFORM(s) USING 'cat' AS (x) FROM t",
    "FROM t MAP s USING 'cat' AS x",
    "FROM t INSERT OVERWRITE DIRECTORY '/tmp/cq-rights' USING csv SELECT s",
    "WITH a AS (SELECT 1 AS x) FROM a INSERT OVERWRITE LOCAL DIRECTORY '/tmp/cq-rights' USING csv SELECT x",
    "INSERT OVERWRITE DIRECTORY '/tmp/cq-rights' USING csv SELECT s FROM t",
    "INSERT INTO csv.`/tmp/cq-rights` SELECT s FROM t",
    "CREATE FUNCTION f AS 'java.lang.Runtime' USING JAR '/tmp/a.jar'",
    "CREATE FUNCTION f(a INT) RETURNS INT LANGUAGE PYTHON AS $$ return 1 $$",
    "CREATE TEMPORARY FUNCTION f AS 'java.lang.Runtime'",
    "CREATE TABLE c USING csv LOCATION '/etc'",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc/passwd')",
    "ADD JAR '/tmp/a.jar'",
    "ADD FILE '/etc/passwd'",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "DECLARE x = 1",
)
"""What the language does not have, or Spark's own commands: errors in every engine."""
ALLOWED = (
    "SELECT 'reflect(1)' AS a, \"java_method('a', 'b')\" AS b, '(reflect(x))' AS identifier",
    "SELECT reflect AS x, java_method FROM named -- reflect(1)",
    "SELECT reflect + (1) AS x FROM named AS identifier",
    "SELECT /* reflect('a') */ count(*) AS c, max(s) AS m FROM t GROUP BY k HAVING count(*) > 0",
    "SELECT * FROM t VERSION AS OF 1",
    "SELECT * FROM t CHANGES FROM VERSION 1",
    "SELECT from_json('{}', 'a INT') AS a, from_csv('1', 'a INT') AS b, xpath('<a>1</a>', 'a/text()') AS c",
    "SELECT * FROM range(3) r JOIN t ON r.id = t.k, LATERAL explode(array(1, 2)) AS e(x)",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
    "SELECT * FROM t PIVOT (count(*) FOR k IN (1, 2))",
    "SELECT loud(s) AS x, twice(k) AS y FROM t",
    "FROM t |> WHERE k = 1 |> AGGREGATE count(*) AS c",
    "VALUES (1, current_date())",
    "SELECT (SELECT max(k) FROM t) AS m, k IN (SELECT k FROM t) AS i FROM t",
)
SUSPICIOUS = re.compile(
    r".*(reflect|java|file|avro|protobuf|xml|logs|worker|read|script|env|url|jar|identif).*"
)
HARMLESS = {
    "jaro_winkler_similarity",
    "parse_url",
    "try_parse_url",
    "url_encode",
    "url_decode",
    "try_url_decode",
    "to_xml",
    "spread",
}


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cq_engine.Engine]:
    directory = tmp_path_factory.mktemp("rights")
    conf = {"restricted": "on", "copy_paths": f"{directory}/in, s3a://bucket/in"}
    session = spark.newSession()
    session.conf.set("spark.sql.timeType.enabled", "true")
    with cq_engine.connect(directory / "w", spark=session, scheduler=False, conf=conf) as opened:
        opened.execute("CREATE TABLE t (k INT PRIMARY KEY, s STRING)")
        opened.execute("CREATE TABLE named (reflect INT PRIMARY KEY, java_method STRING)")
        opened.execute("CREATE FUNCTION loud(a STRING) RETURN upper(a) || '!'")
        opened.function("twice", lambda n: 2 * n, returns="int")
        opened.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        yield opened


def refusal(engine: cq_engine.Engine, text: str) -> CQError | None:
    try:
        engine.execute(text).fetchall()
    except CQError as error:
        return error
    return None


def test_spellings(engine: cq_engine.Engine) -> None:
    for context, call in product((*CONTEXTS, *BY_TREE), SPELLINGS):
        error = refusal(engine, context.format(call))
        assert isinstance(error, AnalysisError), (context, call, error)
        assert "is switched off (restricted = on)" in error.message, (context, call, error)
        assert error.hint
        assert error.location is not None, (context, call)
    for call in SPELLINGS[:4]:
        error = refusal(engine, f"SELECT * FROM t TIMESTAMP AS OF {call}")
        assert error is not None
        assert "is switched off (restricted = on)" in error.message, (call, error)
    assert engine.execute("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_the_plan_alone_decides(engine: cq_engine.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rights, "check_tree", lambda *_: None)
    hidden = "SELECT /* /*+ */ reflect('java.lang.System', 'getProperty', 'user.home') -- */ 1"
    called = (context.format(call) for context, call in zip(CONTEXTS, SPELLINGS * len(CONTEXTS)))
    refused = 0
    for text in (*called, hidden, *REFUSED[:3]):
        error = refusal(engine, text)
        assert error is not None, text
        refused += "is switched off (restricted = on)" in error.message  # else a rule of Spark's own
    assert refused > 20


def test_other_ways_out(engine: cq_engine.Engine) -> None:
    for text in REFUSED:
        error = refusal(engine, text)
        assert error is not None, text
        assert "is switched off (restricted = on)" in error.message, (text, error)
    for text in NO_QUERIES:
        assert refusal(engine, text) is not None, text
    assert not Path("/tmp/cq-rights").exists()


def test_what_another_process_does_for_it(
    engine: cq_engine.Engine, spark: SparkSession, tmp_path: Path
) -> None:
    """The process with the duties runs queries of a restricted one, and has more rights than that."""
    session = spark.newSession()
    session.conf.set("spark.sql.variable.substitute", "true")
    conf = {"restricted": "on"}
    with (
        cq_engine.connect(tmp_path / "w", spark=session, scheduler=False) as holder,
        cq_engine.connect(tmp_path / "w", spark=spark.newSession(), scheduler=False, conf=conf) as other,
    ):
        holder.execute("CREATE TABLE t (k INT PRIMARY KEY, s STRING)")
        assert [holder.catalog.has_duties, other.catalog.has_duties] == [True, False]
        create = "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT k, {} AS x FROM t"
        for call in SPELLINGS:
            error = refusal(other, create.format(call))
            assert isinstance(error, AnalysisError), (call, error)
            assert "is switched off (restricted = on)" in error.message, (call, error)
            assert error.location is not None, call
        assert "switched off" in str(refusal(other, create.format("'${env:HOME}'")))
        assert "switched off" in str(refusal(other, "CREATE FUNCTION f() RETURN '${env:HOME}'"))
        other.execute(create.format("upper(s)"))
        assert "switched off" in str(
            refusal(other, f"ALTER CONTINUOUS QUERY q AS SELECT k, {SPELLINGS[0]} AS x FROM t")
        )
        assert holder.describe("q").position == other.describe("q").position
        holder.execute("INSERT INTO t VALUES (1, 'a')")
        assert other.refresh("q").inserted == 1
        other.execute("DROP CONTINUOUS QUERY q")
        assert refusal(holder, create.format("'${env:HOME}'")) is None, "only who is restricted is"
    assert not engine.services.rights.check_plan(spark, "SELECT 1", {})


def test_what_spark_would_read(engine: cq_engine.Engine, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    spark, rights = engine.spark, engine.services.rights
    for text in (
        f"SELECT * FROM csv.`{tmp_path}`",
        f"SELECT * FROM IDENTIFIER('csv.`{tmp_path}`')",
        f"SELECT (SELECT max(_c0) FROM text.`{tmp_path}`, csv.`{tmp_path}`) AS x",
        "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getProperty', 'user.home')",
        "SELECT TRANSFORM(id) USING 'cat' AS (x) FROM range(1)",
        f"FROM range(1) INSERT OVERWRITE DIRECTORY '{tmp_path}/out' USING csv SELECT id",
    ):
        with pytest.raises(Exception, match=r"switched off|PARSE_SYNTAX_ERROR"):
            rights.check_plan(spark, text, {})
    assert not (tmp_path / "out").exists()


def test_the_environment(engine: cq_engine.Engine, tmp_path: Path) -> None:
    for text in ("${env:PATH}", "${system:user.home}", "${spark:spark.app.name}", "${spark.app.name}"):
        assert engine.execute(f"SELECT '{text}' AS x").fetchall() == [(text,)]
    (tmp_path / "secret").write_text("secret")
    entity = f'<!DOCTYPE a [<!ENTITY e SYSTEM "file://{tmp_path}/secret">]><a>x&e;</a>'
    assert engine.execute(f"SELECT xpath_string('{entity}', 'a') AS x").fetchall() == [("x",)]


def test_allowed(engine: cq_engine.Engine) -> None:
    for text in ALLOWED:
        assert refusal(engine, text) is None, (text, refusal(engine, text))
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT s, count(*) AS c FROM t GROUP BY s")
    engine.execute("UPDATE t SET s = concat(s, 'reflect(') WHERE k = 1")
    assert engine.refresh("q").inserted == 1
    engine.execute("DROP CONTINUOUS QUERY q")


def test_functions_of_spark(engine: cq_engine.Engine) -> None:
    """Where Spark gets a function that sounds as if it reads or runs something, somebody has to look at it."""
    names = {row[0] for row in engine.spark.sql("SHOW FUNCTIONS").collect()}
    for name in sorted(n for n in names if SUSPICIOUS.fullmatch(n) and n not in HARMLESS):
        error = refusal(engine, f"SELECT {name}() AS x")
        assert error is not None, name
        assert "switched off" in error.message, (name, error)


def test_set_cannot_change_it(engine: cq_engine.Engine) -> None:
    for text in (
        "SET restricted = off",
        "SET RESTRICTED = 'off'",
        "SET copy_paths = '/'",
        "SET restricted = on",
    ):
        error = refusal(engine, text)
        assert error is not None, text
        assert "cannot be SET" in error.message, text
        assert error.location is not None
    for text in ("SET spark.sql.variable.substitute = true", "SET spark.sql.ansi.enabled = false"):
        error = refusal(engine, text)
        assert error is not None, text
        assert "switched off" in error.message, text
    engine.execute("SET retention = '8 days'")


def test_options_that_nobody_knows(warehouse: Path) -> None:
    for name, hint in (
        ("restrictd", "restricted"),
        ("maintenence", "maintenance"),
        ("Look_up_cash", "look_up_cache"),
    ):
        with pytest.raises(AnalysisError, match=f"there is no option {name}") as caught:
            cq_engine.connect(warehouse, scheduler=False, conf={name: "on"})
        assert caught.value.hint == f"did you mean {hint}?"
    with pytest.raises(AnalysisError, match="there is no option x") as caught:
        cq_engine.connect(warehouse, scheduler=False, conf={"x": "on"})
    assert all(name in caught.value.hint for name, option in OPTIONS.items() if "engine" in option.owners)
    with pytest.raises(AnalysisError, match="restricted"):
        cq_engine.connect(warehouse, scheduler=False, conf={"restricted": "yes"})
    with pytest.raises(AnalysisError, match="copy_paths"):
        cq_engine.connect(warehouse, scheduler=False, conf={"copy_paths": "data"})
    with cq_engine.connect(warehouse, scheduler=False, conf={"Restricted": "ON", "spark.any": "x"}) as engine:
        assert engine.services.rights.restricted


def test_copy(engine: cq_engine.Engine, tmp_path: Path) -> None:
    inside = Path(engine.services.rights.copy_paths[0])
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "rows.csv").write_text("k,s\n11,x\n")
    (tmp_path / "rows.csv").write_text("k,s\n12,secret\n")
    (inside.parent / "inside.csv").write_text("k,s\n13,secret\n")
    engine.execute(f"COPY INTO t FROM '{inside}/deep/rows.csv'")
    engine.execute("DELETE FROM t WHERE k = 11")
    engine.execute(f"COPY INTO t FROM 'file://{inside}/*/*.csv'")
    (inside / "link.csv").symlink_to(tmp_path / "rows.csv")
    for path in (
        f"{tmp_path}/rows.csv",
        f"file:{tmp_path}/rows.csv",
        f"{inside}.csv",
        f"{inside}/link.csv",
        f"{inside}/*.csv",
        f"{inside}/../inside.csv",
        f"{inside}/{{../inside.csv,x}}",
        f"{inside}/.{{./inside.csv,x}}",
        f"{inside}/\\\\.\\\\./inside.csv",
        "hdfs://host/rows.csv",
        "s3a://bucket/inside.csv",
        "S3A://bucket/other.csv",
        "rows.csv",
    ):
        error = refusal(engine, f"COPY INTO t FROM '{path}'")
        assert error is not None, (path, error)
        assert "COPY INTO may not read" in error.message, (path, error)
    error = refusal(engine, f"COPY INTO t FROM '{inside}/deep' FORMAT csv OPTIONS ('fs.file.impl' = 'x')")
    assert error is not None
    assert "switched off" in error.message
    assert engine.execute("SELECT count(*) FROM t WHERE k > 10").fetchall() == [(1,)]
    with pytest.raises(AnalysisError, match="COPY INTO is switched off"):
        Rights(always=True).copy_path(f"{inside}/deep")
    assert Rights().copy_path("any/path") == "any/path"
