"""Mistakes in statements about continuous queries; see messages.py."""

from __future__ import annotations

from cq_engine.grammar.message import Message

_SHAPE = "CREATE CONTINUOUS QUERY name [clauses] AS SELECT ..."
_FREQUENCIES = (
    "ON COMMIT, EVERY n unit, START 'timestamp' WITH PERIOD n unit, CRON '...', ON INSERT OR UPDATE TO table"
    " or ON DEMAND"
)

CREATE_MESSAGES: tuple[Message, ...] = (
    Message(
        "missing_continuous",
        "CONTINUOUS is missing before QUERY",
        f"write {_SHAPE}",
        (
            "CREATE ‸QUERY q AS SELECT 1",
            "CREATE OR REPLACE ‸QUERY q AS SELECT 1",
            "DROP ‸QUERY q",
            "REFRESH ‸QUERY q",
        ),
        r"^(CREATE( OR REPLACE)?|ALTER|DROP|REFRESH) \^ QUERY$",
    ),
    Message(
        "abbreviation",
        "CQ is not a word of the language",
        f"write it out: {_SHAPE}",
        ("CREATE ‸CQ q AS SELECT 1", "DROP ‸CQ q"),
        r"^\w+( OR REPLACE)? \^ CQ$",
    ),
    Message(
        "missing_query_word",
        "CONTINUOUS is followed by {found}, not by QUERY",
        "write CONTINUOUS QUERY and the name",
        ("CREATE CONTINUOUS ‸VIEW v AS SELECT 1", "CREATE CONTINUOUS‸"),
        r"^(?!SHOW).*CONTINUOUS \^",
    ),
    Message(
        "replace_table",
        "a table cannot be replaced in one statement",
        "write DROP TABLE IF EXISTS name, then CREATE TABLE name",
        ("CREATE OR REPLACE ‸TABLE t (a INT)",),
        r"^CREATE OR REPLACE \^ TABLE",
    ),
    Message(
        "create_view",
        "there are no views",
        "CREATE TABLE name AS SELECT ... keeps rows as they are now; CREATE CONTINUOUS QUERY name AS SELECT ... delivers "
        "what changes in them, and its name reads as its result; WITH names a part of one query",
        (
            "CREATE ‸VIEW v AS SELECT 1",
            "CREATE OR REPLACE ‸VIEW v AS SELECT 1",
            "CREATE ‸MATERIALIZED VIEW v AS SELECT 1",
            "CREATE ‸TEMPORARY VIEW v AS SELECT 1",
        ),
        r"^CREATE( OR REPLACE)? \^ (VIEW|MATERIALIZED|TEMPORARY|TEMP|GLOBAL)$",
    ),
    Message(
        "create_what",
        "CREATE cannot create {found}",
        "write CREATE TABLE, CREATE FUNCTION, CREATE CONTINUOUS QUERY, CREATE DESTINATION, CREATE SOURCE or CREATE CAPTURE",
        ("CREATE ‸INDEX i ON t (a)", "CREATE‸"),
        r"^CREATE \^",
    ),
    Message(
        "replace_and_exists",
        "OR REPLACE and IF NOT EXISTS contradict each other",
        "keep one of the two",
        (
            "CREATE OR REPLACE CONTINUOUS QUERY IF NOT EXISTS ‸q AS SELECT 1",
            "CREATE OR REPLACE FUNCTION IF NOT EXISTS ‸f(a INT) RETURN a",
        ),
    ),
    Message(
        "as_without_query",
        "AS is followed by {found}, not by a query",
        "the defining query begins with SELECT, WITH, VALUES, FROM or a bracket",
        ("CREATE CONTINUOUS QUERY q AS‸", "CREATE CONTINUOUS QUERY q AS ‸TABLE t", "CREATE TABLE t AS ‸5"),
        r" AS \^",
        "QUERY",
    ),
    Message(
        "frequency_missing",
        "ON is followed by {found}",
        "write ON COMMIT, ON DEMAND or ON INSERT OR UPDATE TO table",
        ("CREATE CONTINUOUS QUERY q COMPUTE ON ‸CHANGE SELECT 1", "CREATE CONTINUOUS QUERY q COMPUTE ON‸"),
        r" ON \^",
        "COMMIT",
    ),
    Message(
        "missing_to",
        "ON {last} needs the tables whose changes start a refresh",
        "write ON INSERT OR UPDATE TO table, table",
        (
            "CREATE CONTINUOUS QUERY q COMPUTE ON INSERT ‸SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE ON INSERT OR DELETE ‸t SELECT 1",
        ),
        r" ON (INSERT|UPDATE|DELETE)( OR (INSERT|UPDATE|DELETE))* \^",
    ),
    Message(
        "missing_event",
        "OR is followed by {found}, not by INSERT, DELETE or UPDATE",
        "write ON INSERT OR UPDATE TO table",
        ("CREATE CONTINUOUS QUERY q COMPUTE ON INSERT OR ‸MERGE TO t SELECT 1",),
        r" ON .* OR \^",
    ),
    Message(
        "every_without_number",
        "EVERY needs a number before its unit",
        "write EVERY 5 SECONDS or EVERY INTERVAL '7' DAYS",
        (
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY ‸DAY SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY INTERVAL ‸DAYS SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY‸",
        ),
        r" EVERY( INTERVAL)? \^",
    ),
    Message(
        "period_without_number",
        "PERIOD needs a number and a unit",
        "write START '2007-01-01' WITH PERIOD 1 DAY",
        ("CREATE CONTINUOUS QUERY q COMPUTE START '01-01-2007' WITH PERIOD ‸DAY SELECT 1",),
        r" PERIOD( INTERVAL)? \^",
    ),
    Message(
        "unknown_unit",
        "{found} is not a unit of time",
        "units are SECONDS, MINUTES, HOURS, DAYS, WEEKS and MONTHS",
        (
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY INTERVAL '7' ‸FORTNIGHTS SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY 5 ‸SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE START '01-01-2007' WITH PERIOD 1 ‸YEAR SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY 5‸",
            "CREATE CAPTURE c INTO t FROM s USING LOG EVERY 10 ‸WITH (a = 1)",
        ),
        r" (EVERY|PERIOD)( INTERVAL)? \S+ \^",
        "UNIT",
    ),
    Message(
        "bad_period",
        "a period of {found} is not possible",
        "a period is a whole number above 0 of one unit, such as INTERVAL '7' DAYS",
        (
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY ‸0 SECONDS SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE EVERY INTERVAL ‸'1.5' HOURS SELECT 1",
        ),
    ),
    Message(
        "start_with_period",
        "START 'timestamp' is followed by {found}, not by WITH PERIOD",
        "write START '2007-01-01' WITH PERIOD 1 DAY",
        (
            "CREATE CONTINUOUS QUERY q COMPUTE START '01-01-2007' ‸EVERY 1 DAY SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE START '01-01-2007' WITH ‸1 DAY SELECT 1",
        ),
        r" START string( WITH)? \^",
    ),
    Message(
        "start_point",
        "FROM is followed by {found}, not by a point in the history",
        "write FROM NOW, FROM SNAPSHOT or FROM VERSION n",
        (
            "CREATE CONTINUOUS QUERY q START FROM ‸BEGINNING SELECT 1",
            "ALTER CONTINUOUS QUERY q RESUME FROM ‸5",
        ),
        r" (START|RESUME) FROM \^",
    ),
    Message(
        "start_what",
        "START is followed by {found}",
        "write START FROM NOW | SNAPSHOT | VERSION n, START 'timestamp' WITH PERIOD n unit, or START TRANSACTION",
        ("CREATE CONTINUOUS QUERY q START ‸NOW SELECT 1", "START ‸WORK"),
        r"\bSTART \^",
    ),
    Message(
        "version_number",
        "VERSION needs the number of a commit version",
        "write FROM VERSION 42",
        (
            "CREATE CONTINUOUS QUERY q START FROM VERSION ‸SELECT 1",
            "ALTER CONTINUOUS QUERY q RESUME FROM VERSION‸",
        ),
        r" VERSION \^",
    ),
    Message(
        "cron_string",
        "CRON needs its expression as a string",
        "write CRON '0 6 * * mon'",
        ("CREATE CONTINUOUS QUERY q COMPUTE CRON ‸0 6 * * 1 SELECT 1",),
        r" CRON \^",
    ),
    Message(
        "cron_fields",
        "a CRON expression has five fields, this one has {found}",
        "minute, hour, day of month, month, day of week: CRON '0 6 * * mon'",
        ("CREATE CONTINUOUS QUERY q COMPUTE CRON ‸'0 6 *' SELECT 1",),
    ),
    Message(
        "missing_delta",
        "DELTA is missing after {last}",
        "write [INSERT] [DELETE] [UPDATE] DELTA",
        (
            "CREATE CONTINUOUS QUERY q COMPUTE TRANSACTIONAL INSERT DELETE ‸ON COMMIT SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE INSERT ‸SELECT 1",
            "ALTER CONTINUOUS QUERY q SET INSERT DELETE‸",
        ),
        r" (COMPUTE|TRANSACTIONAL|COMPRESSED|SET)( (INSERT|DELETE|UPDATE))+ \^",
    ),
    Message(
        "delta_without_compute",
        "{found} cannot begin a clause",
        "the kind of delta follows COMPUTE: COMPUTE TRANSACTIONAL INSERT DELETE DELTA ON COMMIT",
        (
            "CREATE CONTINUOUS QUERY q ‸TRANSACTIONAL DELTA SELECT 1",
            "CREATE CONTINUOUS QUERY q PRIMARY KEY (a) ‸INSERT DELTA SELECT 1",
        ),
        r"^CREATE .*CONTINUOUS QUERY .*\^ (TRANSACTIONAL|COMPRESSED|INSERT|DELETE|UPDATE|DELTA)$",
        "COMPUTE",
    ),
    Message(
        "compute_what",
        "COMPUTE is followed by {found}",
        f"say which delta or when: {_FREQUENCIES}",
        ("CREATE CONTINUOUS QUERY q COMPUTE ‸DAILY SELECT 1", "CREATE CONTINUOUS QUERY q COMPUTE‸"),
        r" COMPUTE \^",
    ),
    Message(
        "empty_compute",
        "COMPUTE says nothing",
        f"say which delta or when: {_FREQUENCIES}",
        (
            "CREATE CONTINUOUS QUERY q ‸COMPUTE SELECT 1",
            "CREATE CONTINUOUS QUERY q ‸COMPUTE DESTINATION d SELECT 1",
        ),
    ),
    Message(
        "duplicate_event",
        "{event} stands twice",
        "name each of INSERT, DELETE and UPDATE at most once",
        (
            "CREATE CONTINUOUS QUERY q COMPUTE INSERT ‸INSERT DELTA SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE ON UPDATE OR ‸UPDATE TO t SELECT 1",
        ),
    ),
    Message(
        "consistency",
        "CONSISTENCY is followed by {found}, not by a level",
        "write COMPLETE (a delta for every transaction at a source), STRONG (for several together) or CONVERGENT",
        (
            "CREATE CONTINUOUS QUERY q CONSISTENCY ‸FULL AS SELECT 1",
            "CREATE CONTINUOUS QUERY q CONSISTENCY ‸AS SELECT 1",
        ),
        r" CONSISTENCY \^",
    ),
    Message(
        "duplicate_clause",
        "a second {clause} clause",
        "every clause may stand once; keep one of the two",
        (
            "CREATE CONTINUOUS QUERY q DESTINATION a ‸DESTINATION b SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE ON COMMIT ‸EVERY 5 SECONDS SELECT 1",
            "CREATE CONTINUOUS QUERY q PRIMARY KEY (a) COMPUTE ON COMMIT ‸PRIMARY KEY (b) AS SELECT 1",
            "CREATE TABLE t (a INT) CLUSTER BY (a) ‸CLUSTER BY (a)",
            "CREATE TABLE t (a INT NOT NULL ‸NOT NULL)",
            "COPY INTO t FROM 'x' FORMAT csv ‸FORMAT json",
            "CREATE SOURCE s TYPE csv WITH (a = 1) ‸WITH (b = 2)",
            "CREATE CAPTURE c INTO t FROM s TABLE 'a' (k) ‸TABLE 'b' USING LOG",
            "CREATE CAPTURE c INTO t FROM s USING LOG ON DEMAND ‸EVERY 5 SECONDS",
            "CREATE CAPTURE c INTO t FROM s USING LOG WITH (a = 1) WITH (b = 2) ‸WITH (c = 3)",
            "CREATE CAPTURE c INTO t FROM s USING RANGES (CHECKSUM, ‸CHECKSUM)",
        ),
    ),
    Message(
        "webhook_address",
        "a destination is a name, not {found}",
        "declare the destination with its address, and give its name here",
        ("CREATE CONTINUOUS QUERY q DESTINATION WEBHOOK ‸'https://example.org' SELECT 1",),
        r" DESTINATION (.* , )?(TABLE|CALLBACK|QUEUE|TRIGGER|WEBHOOK)? ?\^ string",
    ),
    Message(
        "unknown_kind",
        "{last} is not a kind of destination",
        "kinds are TABLE, CALLBACK, QUEUE, TRIGGER and WEBHOOK; destinations are separated by commas",
        (
            "CREATE CONTINUOUS QUERY q DESTINATION MAILBOX ‸alerts AS SELECT 1",
            "CREATE CONTINUOUS QUERY q DESTINATION a, CALBACK ‸f SELECT 1",
        ),
        r" DESTINATION (.* , )?name \^ [A-Z]\w*$",
        "COMMA",
    ),
    Message(
        "missing_defining_query",
        "the defining query is missing",
        f"write {_SHAPE}",
        (
            "CREATE CONTINUOUS QUERY q‸",
            "CREATE CONTINUOUS QUERY q COMPUTE ON COMMIT DESTINATION d‸",
            "CREATE CONTINUOUS QUERY q PRIMARY KEY (a) COMPUTE COMPRESSED DELTA EVERY INTERVAL '7' DAYS‸",
        ),
        r"^CREATE .*CONTINUOUS QUERY .* \^ end$",
        "QUERY",
    ),
)

ALTER_MESSAGES: tuple[Message, ...] = (
    Message(
        "follow_what",
        "FOLLOW needs the name of a continuous query",
        "write FOLLOW name, FOLLOW name SNAPSHOT or FOLLOW name FROM VERSION n",
        ("FOLLOW‸", "FOLLOW ‸(SELECT 1)", "FOLLOW CONTINUOUS QUERY‸"),
        r"^FOLLOW( CONTINUOUS QUERY)? \^",
    ),
    Message(
        "follow_from",
        "{found} is no place from where a query can be followed",
        "write FROM VERSION n (what comes after version n), SNAPSHOT (the result first), or nothing (from now on)",
        ("FOLLOW q ‸WHERE a > 1", "FOLLOW q FROM ‸12", "FOLLOW q ‸TO VERSION 7"),
        r"^FOLLOW( CONTINUOUS QUERY)? name( FROM)? \^",
    ),
    Message(
        "alter_query_what",
        "{found} is not a change of a continuous query",
        "write PAUSE, RESUME [FROM ...], SET ..., or AS with another defining query",
        (
            "ALTER CONTINUOUS QUERY q ‸STOP",
            "ALTER CONTINUOUS QUERY q‸",
            "ALTER CONTINUOUS QUERY q ‸SELECT 1",
        ),
        r"^ALTER CONTINUOUS QUERY name \^",
    ),
    Message(
        "alter_mode",
        "{mode} cannot be set: the mode of a delta is fixed when the query is created",
        "write CREATE OR REPLACE CONTINUOUS QUERY",
        ("ALTER CONTINUOUS QUERY q SET ‸COMPUTE COMPRESSED DELTA",),
    ),
    Message(
        "set_what",
        "{found} is not a property that can be set",
        f"COMPUTE, [INSERT] [DELETE] [UPDATE] DELTA, DESTINATION, NO DESTINATION, WITH (...), or when: {_FREQUENCIES}",
        ("ALTER CONTINUOUS QUERY q SET ‸PRIMARY KEY (a)", "ALTER CONTINUOUS QUERY q SET‸"),
        r"^ALTER CONTINUOUS QUERY name SET \^",
    ),
)
