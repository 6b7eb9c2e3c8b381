"""Every statement of the language, from text to record."""

from __future__ import annotations

import pytest

from cq_engine.grammar import clauses as cl
from cq_engine.grammar import parse
from cq_engine.grammar import statements as st
from tests.grammar.records import HEAD, only_plain_text

CASES: list[tuple[str, st.Statement]] = [
    ("CREATE OR REPLACE CONTINUOUS QUERY q AS SELECT 1", st.CreateContinuousQuery("q", "SELECT 1", or_replace=True)),
    (
        "create continuous query if not exists `a b` select 1",
        st.CreateContinuousQuery("a b", "select 1", if_not_exists=True),
    ),
    ("ALTER CONTINUOUS QUERY q PAUSE", st.AlterContinuousQuery("q", "PAUSE")),
    ("ALTER CONTINUOUS QUERY q RESUME", st.AlterContinuousQuery("q", "RESUME")),
    ("ALTER CONTINUOUS QUERY q RESUME FROM NOW", st.AlterContinuousQuery("q", "RESUME", cl.StartFrom("NOW"))),
    (
        "ALTER CONTINUOUS QUERY q RESUME FROM VERSION 7",
        st.AlterContinuousQuery("q", "RESUME", cl.StartFrom("VERSION", 7)),
    ),
    (
        "ALTER CONTINUOUS QUERY q SET COMPUTE EVERY 5 MINUTES",
        st.AlterContinuousQuery("q", "SET", when=cl.EveryInterval(5, "MINUTE")),
    ),
    ("ALTER CONTINUOUS QUERY q SET ON DEMAND", st.AlterContinuousQuery("q", "SET", when=cl.OnDemand())),
    ("ALTER CONTINUOUS QUERY q SET INSERT DELTA", st.AlterContinuousQuery("q", "SET", markers=("I",))),
    (
        "ALTER CONTINUOUS QUERY q SET COMPUTE DELTA ON COMMIT DESTINATION QUEUE a, b WITH (x = 1)",
        st.AlterContinuousQuery(
            "q",
            "SET",
            when=cl.OnCommit(),
            markers=("I", "D", "U"),
            destinations=(cl.DestinationRef("a", "QUEUE"), cl.DestinationRef("b")),
            options=(("x", "1"),),
        ),
    ),
    ("ALTER CONTINUOUS QUERY q SET NO DESTINATION", st.AlterContinuousQuery("q", "SET", destinations=())),
    ("ALTER CONTINUOUS QUERY q AS SELECT 1", st.AlterContinuousQuery("q", "AS", query="SELECT 1")),
    ("alter continuous query q as (VALUES (1))", st.AlterContinuousQuery("q", "AS", query="(VALUES (1))")),
    ("DROP CONTINUOUS QUERY q RESTRICT", st.DropContinuousQuery("q")),
    ("REFRESH CONTINUOUS QUERY q", st.RefreshContinuousQuery("q")),
    ("FOLLOW q", st.Follow("q")),
    ("follow continuous query `a b` snapshot", st.Follow("a b", cl.StartFrom("SNAPSHOT"))),
    ("create table t from delta '/lake/t'", st.CreateTable("t", delta="/lake/t")),
    (
        "create table if not exists t (primary key (a)) with (retention = '2 days') from delta 's3://b/t' every 5 seconds",
        st.CreateTable(
            "t", primary_key=cl.PrimaryKeySpec(("a",)), options=(("retention", "2 days"),), if_not_exists=True,
            delta="s3://b/t", when=cl.EveryInterval(5, "SECOND"),
        ),
    ),
    ("FOLLOW q FROM VERSION 12;", st.Follow("q", cl.StartFrom("VERSION", 12))),
    ("FOLLOW q FROM SNAPSHOT", st.Follow("q", cl.StartFrom("SNAPSHOT"))),
    ("FOLLOW q FROM NOW", st.Follow("q")),
    ("DROP CONTINUOUS QUERY q", st.DropContinuousQuery("q")),
    ("DROP CONTINUOUS QUERY IF EXISTS q CASCADE", st.DropContinuousQuery("q", True, True)),
    ("CREATE DESTINATION d TYPE table", st.CreateDestination("d", "TABLE")),
    (
        "create destination if not exists `a b` type Callback with (Backoff = 2 seconds, on_failure = dead_letter)",
        st.CreateDestination("a b", "CALLBACK", (("backoff", "2 SECONDS"), ("on_failure", "dead_letter")), True),
    ),
    (
        "CREATE DESTINATION d TYPE trigger AS BEGIN DELETE FROM t; UPDATE t SET a = CASE WHEN b THEN 1 END; END",
        st.CreateDestination(
            "d", "TRIGGER",
            script=cl.Script("DELETE FROM t; UPDATE t SET a = CASE WHEN b THEN 1 END;"),
        ),
    ),
    (
        "create destination d type trigger for each row with (n = 3) when (a > (1)) as begin -- END\n  insert into t select start, end from inserted end",
        st.CreateDestination(
            "d", "TRIGGER", (("n", "3"),),
            script=cl.Script("-- END\n  insert into t select start, end from inserted", "a > (1)", True),
        ),
    ),
    ("ALTER DESTINATION d PAUSE", st.AlterDestination("d", "PAUSE")),
    ("ALTER DESTINATION d RESUME;", st.AlterDestination("d", "RESUME")),
    ("ALTER DESTINATION d SET WITH (x = '1')", st.AlterDestination("d", "SET", (("x", "1"),))),
    (
        "ALTER DESTINATION d REPLAY FOR q FROM VERSION 7",
        st.AlterDestination("d", "REPLAY", query="q", version=7),
    ),
    ("ALTER DESTINATION d REPLAY FROM VERSION 7", st.AlterDestination("d", "REPLAY", version=7)),
    ("alter destination d skip for q to version 0", st.AlterDestination("d", "SKIP", query="q", version=0)),
    ("DROP DESTINATION d RESTRICT", st.DropDestination("d")),
    ("DROP DESTINATION IF EXISTS d CASCADE", st.DropDestination("d", True, True)),
    ("DEQUEUE FROM d", st.Dequeue("d")),
    ("dequeue 10 from d group 'a b' wait 5 seconds;", st.Dequeue("d", 10, "a b", (5, "SECOND"))),
    ("DEQUEUE FROM d WAIT INTERVAL '1' MINUTE", st.Dequeue("d", wait=(1, "MINUTE"))),
    ("ACK d UP TO b12a3a1", st.Ack("d", "b12a3a1")),
    ("ACK d GROUP 'g' UP TO 'b12a3a1'", st.Ack("d", "b12a3a1", "g")),
    ("REJECT d MESSAGE b12a3a1", st.Reject("d", "b12a3a1")),
    ("reject `group` group 'g' message b12a3a1 requeue", st.Reject("group", "b12a3a1", "g", True)),
    ("DESCRIBE DESTINATION d", st.Describe("d", "DESTINATION")),
    (
        "CREATE SOURCE shop TYPE PostgreSQL WITH (url = '${SHOP_URL}')",
        st.CreateSource("shop", "postgresql", (("url", "${SHOP_URL}"),)),
    ),
    ("create source if not exists `a b` type csv", st.CreateSource("a b", "csv", (), True)),
    ("ALTER SOURCE s SET WITH (x = '1')", st.AlterSource("s", (("x", "1"),))),
    ("DROP SOURCE s RESTRICT", st.DropSource("s")),
    ("DROP SOURCE IF EXISTS s CASCADE", st.DropSource("s", True, True)),
    ("SHOW SOURCES", st.Show("SOURCES")),
    ("DESCRIBE SOURCE s", st.Describe("s", "SOURCE")),
    ("CREATE CAPTURE c INTO t FROM s USING LOG", st.CreateCapture("c", "t", "s", cl.CaptureMethod("LOG"))),
    (
        """create capture if not exists c into t from s table 'public.orders' (a, b as `x y`) where 'r = ''EU'' or x'
        using timestamp (ts, deleted gone) with (overlap = 5 minutes) every 10 seconds with (initial = none)""",
        st.CreateCapture(
            "c", "t", "s",
            cl.CaptureMethod("TIMESTAMP", "ts", "gone", options=(("overlap", "5 MINUTES"),)),
            "public.orders",
            (cl.CapturedColumn("a", "a"), cl.CapturedColumn("b", "x y")),
            "r = 'EU' or x",
            cl.EveryInterval(10, "SECOND"),
            (("initial", "none"),),
            True,
        ),
    ),
    (
        "CREATE CAPTURE c INTO t FROM s (a) WHERE 'w' TABLE 'r' USING COPY WITH (at = here) WITH (initial = none) ON DEMAND",
        st.CreateCapture(
            "c", "t", "s", cl.CaptureMethod("COPY", options=(("at", "here"),)), "r",
            (cl.CapturedColumn("a", "a"),), "w", cl.OnDemand(), (("initial", "none"),),
        ),
    ),
    (
        "CREATE CAPTURE c INTO t FROM s TABLE 'r' USING RANGES (rows = 1000, CHECKSUM) WITH (a = 1) CRON '0 6 * * mon'",
        st.CreateCapture(
            "c", "t", "s",
            cl.CaptureMethod("RANGES", checksum=True, options=(("rows", "1000"), ("a", "1"))),
            "r", when=cl.Cron("0 6 * * mon"),
        ),
    ),
    (
        "CREATE CAPTURE c INTO t FROM s TABLE 'r' USING RANGES EVERY 1 DAY WITH (a = 1)",
        st.CreateCapture(
            "c", "t", "s", cl.CaptureMethod("RANGES"), "r", when=cl.EveryInterval(1, "DAY"), options=(("a", "1"),)
        ),
    ),
    (
        "CREATE CAPTURE c INTO t FROM s USING VIEW 'select 1' START '2026-01-01' WITH PERIOD 1 DAY",
        st.CreateCapture(
            "c", "t", "s", cl.CaptureMethod("VIEW", query="select 1"), when=cl.StartWithPeriod("2026-01-01", 1, "DAY")
        ),
    ),
    (
        "CREATE CAPTURE source INTO capture FROM log TABLE 'r' (copy AS view) USING CHECKSUM (checksum)",
        st.CreateCapture(
            "source", "capture", "log", cl.CaptureMethod("CHECKSUM", "checksum"), "r",
            (cl.CapturedColumn("copy", "view"),),
        ),
    ),
    (
        "CREATE CAPTURE ranges INTO timestamp FROM advise USING TIMESTAMP (timestamp, DELETED deleted)",
        st.CreateCapture("ranges", "timestamp", "advise", cl.CaptureMethod("TIMESTAMP", "timestamp", "deleted")),
    ),
    ("ALTER CAPTURE c PAUSE", st.AlterCapture("c", "PAUSE")),
    ("ALTER CAPTURE c RESUME", st.AlterCapture("c", "RESUME")),
    ("ALTER CAPTURE c SET EVERY 5 MINUTES", st.AlterCapture("c", "SET", cl.EveryInterval(5, "MINUTE"))),
    (
        "ALTER CAPTURE c SET WITH (a = 1) ON DEMAND",
        st.AlterCapture("c", "SET", cl.OnDemand(), (("a", "1"),)),
    ),
    ("DROP CAPTURE c", st.DropCapture("c")),
    ("DROP CAPTURE IF EXISTS c;", st.DropCapture("c", True)),
    ("REFRESH CAPTURE c", st.RefreshCapture("c")),
    ("ADVISE CAPTURE FROM s TABLE 'public.orders'", st.AdviseCapture("s", "public.orders")),
    ("advise verbose capture from s table 'r'", st.AdviseCapture("s", "r", True)),
    ("SHOW CAPTURES", st.Show("CAPTURES")),
    ("DESCRIBE CAPTURE c", st.Describe("c", "CAPTURE")),
    ("DROP TABLE IF EXISTS t RESTRICT", st.DropTable("t", True)),
    ("DROP TABLE transaction", st.DropTable("transaction")),
    ("CREATE FUNCTION f(a INT) RETURN a + 1;", st.CreateFunction("f", "(a INT) RETURN a + 1")),
    ("create or replace function `F` () return '(' ", st.CreateFunction("F", "() return '('", True)),
    ("CREATE FUNCTION IF NOT EXISTS f (a INT) RETURN a", st.CreateFunction("f", "(a INT) RETURN a", False, True)),
    ("DROP FUNCTION f RESTRICT", st.DropFunction("f")),
    ("DROP FUNCTION IF EXISTS f", st.DropFunction("f", True)),
    ("COMPACT TABLE t", st.CompactTable("t")),
    ("VACUUM", st.Vacuum()),
    ("vacuum t", st.Vacuum("t")),
    ("VACUUM RETAIN 0 HOURS", st.Vacuum(None, "0 HOUR")),
    ("VACUUM `a b` RETAIN 14 days", st.Vacuum("a b", "14 DAY")),
    ("CHECK CONSTRAINTS", st.CheckConstraints()),
    ("check constraints on t", st.CheckConstraints("t")),
    ("BEGIN", st.Begin()),
    ("BEGIN TRANSACTION", st.Begin()),
    ("START TRANSACTION;", st.Begin()),
    ("COMMIT WORK", st.Commit()),
    ("ROLLBACK TRANSACTION", st.Rollback()),
    ("SHOW TABLES", st.Show("TABLES")),
    ("SHOW FUNCTIONS", st.Show("FUNCTIONS")),
    ("SHOW PROCESSES", st.Show("PROCESSES")),
    ("SHOW CONTINUOUS QUERIES", st.Show("CONTINUOUS QUERIES")),
    ("SHOW DESTINATIONS", st.Show("DESTINATIONS")),
    ("SHOW REFRESHES", st.Show("REFRESHES")),
    ("SHOW REFRESHES FOR q", st.Show("REFRESHES", "q")),
    ("DESCRIBE t", st.Describe("t")),
    ("DESC TABLE t", st.Describe("t", "TABLE")),
    ("DESCRIBE continuous  query q", st.Describe("q", "CONTINUOUS QUERY")),
    ("EXPLAIN CONTINUOUS QUERY q", st.Explain(name="q")),
    ("EXPLAIN ANALYZE CONTINUOUS QUERY q", st.Explain(name="q", analyze=True)),
    ("EXPLAIN (FORMAT json) CONTINUOUS QUERY q", st.Explain(name="q", format="JSON")),
    ("EXPLAIN (ANALYZE, FORMAT MERMAID) CONTINUOUS QUERY q", st.Explain(name="q", analyze=True, format="MERMAID")),
    ("EXPLAIN ANALYZE (FORMAT JSON) CONTINUOUS QUERY q", st.Explain(name="q", analyze=True, format="JSON")),
    ("EXPLAIN (SELECT 1)", st.Explain(text="(SELECT 1)")),
    ("EXPLAIN  SELECT 1 ; ", st.Explain(text="SELECT 1")),
    ("EXPLAIN " + HEAD + "SELECT 1", st.Explain(text=HEAD + "SELECT 1")),
    ("SET a = 5", st.SetOption("a", "5")),
    ("SET spark.sql.ansi.enabled = false", st.SetOption("spark.sql.ansi.enabled", "false")),
    ("SET spark.sql.session.timeZone = 'Europe/Paris'", st.SetOption("spark.sql.session.timeZone", "Europe/Paris")),
    ("SET a = b c d", st.SetOption("a", "b c d")),
    ("SELECT 1;", st.Query("SELECT 1")),
    ("  (SELECT 1) -- end", st.Query("(SELECT 1)")),
    ("VALUES (1)", st.Query("VALUES (1)")),
    ("FROM t SELECT *", st.Query("FROM t SELECT *")),
    ("SELECT * FROM q CHANGES FROM VERSION 1 TO VERSION 2", st.Query("SELECT * FROM q CHANGES FROM VERSION 1 TO VERSION 2")),
    ("WITH a AS (SELECT 1) SELECT * FROM a", st.Query("WITH a AS (SELECT 1) SELECT * FROM a")),
    ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", st.Dml("INSERT", "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a")),
    ("insert into t values (1, 'a;b')", st.Dml("INSERT", "insert into t values (1, 'a;b')")),
    ("INSERT OVERWRITE t SELECT 1", st.Dml("INSERT", "INSERT OVERWRITE t SELECT 1")),
    ("UPDATE t SET a = 1 /* c */ WHERE b", st.Dml("UPDATE", "UPDATE t SET a = 1 /* c */ WHERE b")),
    ("DELETE FROM t", st.Dml("DELETE", "DELETE FROM t")),
    ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
     st.Dml("MERGE", "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE")),
    ("TRUNCATE TABLE t", st.Dml("TRUNCATE", "TRUNCATE TABLE t")),
    ("COPY INTO t FROM 's3://b/x'", st.CopyInto("t", "s3://b/x")),
    (
        "COPY INTO t (a, from_) FROM 'x.csv' FORMAT CSV OPTIONS (header = true, sep = '\\t')",
        st.CopyInto("t", "x.csv", "csv", ("a", "from_"), (("header", "true"), ("sep", "\t"))),
    ),
    (
        "COPY INTO t FROM 'x' FORMAT_OPTIONS ('mergeSchema' = 'true') FILEFORMAT = PARQUET",
        st.CopyInto("t", "x", "parquet", (), (("mergeschema", "true"),)),
    ),
    ("COPY INTO t FROM 'x' (FORMAT parquet)", st.CopyInto("t", "x", "parquet")),
    (
        "COPY INTO t FROM 'x' (FORMAT 'CSV', HEADER, DELIMITER '|')",
        st.CopyInto("t", "x", "csv", options=(("header", "true"), ("delimiter", "|"))),
    ),
    ("COPY INTO t FROM 'x' WITH (FORMAT csv, HEADER)", st.CopyInto("t", "x", "csv", options=(("header", "true"),))),
    ("INSERT INTO t SELECT 1 FROM a JOIN b ON conflict = b.c",
     st.Dml("INSERT", "INSERT INTO t SELECT 1 FROM a JOIN b ON conflict = b.c")),
    ("COPY INTO t FROM 'x' WITH (a = 1)", st.CopyInto("t", "x", options=(("a", "1"),))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_statements(text, expected):
    statement = parse(text)
    assert statement == expected
    assert only_plain_text(statement)


@pytest.mark.parametrize(
    "word", ["source", "sources", "capture", "captures", "timestamp", "checksum", "copy", "ranges", "view", "log",
             "advise", "verbose", "deleted"],
)  # fmt: skip
def test_words_about_sources_are_names_too(word):
    table = st.CreateTable(word, (cl.ColumnSpec(word, "TIMESTAMP"),))
    assert parse(f"CREATE TABLE {word} ({word} TIMESTAMP)") == table
    assert parse(f"DROP TABLE {word}") == st.DropTable(word)
    assert parse(f"DESCRIBE {word}") == st.Describe(word)
    assert parse(f"DESCRIBE TABLE {word}") == st.Describe(word, "TABLE")
    assert parse(f"DESCRIBE CAPTURE {word}") == st.Describe(word, "CAPTURE")
    assert parse(f"CREATE DESTINATION {word} TYPE table") == st.CreateDestination(word, "TABLE")
    assert parse(f"REFRESH CONTINUOUS QUERY {word}") == st.RefreshContinuousQuery(word)


def test_create_table():
    assert parse(
        """
        CREATE TABLE IF NOT EXISTS orderline (
          oid BIGINT NOT NULL REFERENCES orders (oid) RELY,
          line INT COMMENT 'it''s the line',
          key STRING, `order date` date NULL,
          start DECIMAL(10, 2), time TIMESTAMP_NTZ, date DATE,
          CONSTRAINT pk PRIMARY KEY (oid, line) NOT ENFORCED RELY,
          CONSTRAINT fk FOREIGN KEY (key, start) REFERENCES item (key, start) ENFORCED,
          FOREIGN KEY (date) REFERENCES calendar
        ) USING delta CLUSTER BY (oid) COMMENT 'lines' TBLPROPERTIES ('a.b' = 'c')
        """
    ) == st.CreateTable(
        name="orderline",
        columns=(
            cl.ColumnSpec("oid", "BIGINT", nullable=False),
            cl.ColumnSpec("line", "INT", comment="it's the line"),
            cl.ColumnSpec("key", "STRING"),
            cl.ColumnSpec("order date", "DATE"),
            cl.ColumnSpec("start", "DECIMAL(10,2)"),
            cl.ColumnSpec("time", "TIMESTAMP_NTZ"),
            cl.ColumnSpec("date", "DATE"),
        ),
        primary_key=cl.PrimaryKeySpec(("oid", "line"), enforced=False, rely=True, name="pk"),
        foreign_keys=(
            cl.ForeignKeySpec(("oid",), "orders", ("oid",), rely=True),
            cl.ForeignKeySpec(("key", "start"), "item", ("key", "start"), name="fk", enforced=True),
            cl.ForeignKeySpec(("date",), "calendar"),
        ),
        cluster_by=("oid",),
        options=(("a.b", "c"),),
        if_not_exists=True,
        comment="lines",
    )


def test_inline_constraints_of_one_column():
    statement = parse(
        "CREATE TABLE t (a INT CONSTRAINT p PRIMARY KEY NOT ENFORCED RELY NOT NULL"
        " CONSTRAINT f REFERENCES s ENFORCED COMMENT 'c')"
    )
    assert statement == st.CreateTable(
        "t",
        (cl.ColumnSpec("a", "INT", False, "c"),),
        cl.PrimaryKeySpec(("a",), False, True, "p"),
        (cl.ForeignKeySpec(("a",), "s", (), "f", True),),
    )


@pytest.mark.parametrize(
    "query", ["AS SELECT 1 a", "SELECT 1 a", "AS (SELECT 1 a)", "AS WITH x AS (SELECT 1 a) FROM x"]
)
def test_create_table_as(query):
    text = f"CREATE TABLE t CLUSTER BY (a) WITH (x = 1) {query}"
    statement = parse(text)
    query = query.removeprefix("AS ")
    assert statement == st.CreateTable("t", cluster_by=("a",), options=(("x", "1"),), query=query)
    assert isinstance(statement, st.CreateTable)
    assert text[statement.query_offset :] == query


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("int", "INT"),
        ("Decimal ( 10 , 2 )", "DECIMAL(10,2)"),
        ("varchar(20)", "VARCHAR(20)"),
        ("array<map<string,array<int>>>", "ARRAY<MAP<STRING, ARRAY<INT>>>"),
        (
            "struct<a:int not null comment 'c', `b c` struct<table: date>>",
            "STRUCT<a: INT NOT NULL COMMENT 'c', `b c`: STRUCT<`table`: DATE>>",
        ),
        ("STRUCT<>", "STRUCT<>"),
        ("string collate UTF8_LCASE", "STRING COLLATE UTF8_LCASE"),
        ("interval day to second", "INTERVAL DAY TO SECOND"),
        ("interval month", "INTERVAL MONTH"),
        ("interval", "INTERVAL"),
        ("variant", "VARIANT"),
    ],
)
def test_column_types(written, canonical):
    statement = parse(f"CREATE TABLE t (a {written} NOT NULL, b {written})")
    assert statement == st.CreateTable(
        "t", (cl.ColumnSpec("a", canonical, False), cl.ColumnSpec("b", canonical))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "ALTER TABLE t ADD COLUMN a INT NOT NULL",
            st.AlterTable("t", "ADD COLUMNS", columns=(cl.ColumnSpec("a", "INT", False),)),
        ),
        (
            "ALTER TABLE t ADD COLUMNS (a INT, b STRING)",
            st.AlterTable(
                "t", "ADD COLUMNS", columns=(cl.ColumnSpec("a", "INT"), cl.ColumnSpec("b", "STRING"))
            ),
        ),
        (
            "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES s (b) NOT ENFORCED RELY",
            st.AlterTable(
                "t", "ADD FOREIGN KEY", foreign_key=cl.ForeignKeySpec(("a",), "s", ("b",), "f", False, True)
            ),
        ),
        ("ALTER TABLE t CLUSTER BY (a, b)", st.AlterTable("t", "CLUSTER BY", cluster_by=("a", "b"))),
        ("ALTER TABLE t CLUSTER BY ()", st.AlterTable("t", "CLUSTER BY")),
        ("ALTER TABLE t RENAME TO `u v`", st.AlterTable("t", "RENAME", new_name="u v")),
    ],
)
def test_alter_table(text, expected):
    assert parse(text) == expected
