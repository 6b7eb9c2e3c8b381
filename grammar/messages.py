"""Every known mistake: what to say about it, and texts that make it.

The examples are the tests of the rows: `‸` in an example marks where the caret has to stand. The first row that fits
is taken, so particular rows stand before general ones. A row without `pattern` is raised by its key, by the scanner
or by a rule of build.py.
"""

from __future__ import annotations

from cq_engine.grammar.message import Message
from cq_engine.grammar.messages_destination import DESTINATION_MESSAGES
from cq_engine.grammar.messages_query import ALTER_MESSAGES, CREATE_MESSAGES
from cq_engine.grammar.messages_source import SOURCE_MESSAGES
from cq_engine.grammar.messages_table import TABLE_MESSAGES
from cq_engine.grammar.nesting import MAX_LEVELS

_TEXT: tuple[Message, ...] = (
    Message(
        "unclosed_string",
        "the string that begins here is never closed",
        "close it with the same quote; a quote inside a string is written twice or after a backslash",
        ("COPY INTO t FROM ‸'data.csv", "SELECT ‸'it", 'INSERT INTO t VALUES (‸"a)'),
    ),
    Message(
        "unclosed_name",
        "the quoted name that begins here is never closed",
        "close it with a backquote; a backquote inside a name is written twice",
        ("DROP TABLE ‸`order line",),
    ),
    Message(
        "unclosed_comment",
        "the comment that begins here is never closed",
        "close it with */; comments nest, so every /* needs its own */",
        ("DROP TABLE t ‸/* why", "‸/* a /* b */ SELECT 1"),
    ),
    Message(
        "unclosed_bracket",
        "the bracket that is opened here is never closed",
        "add the missing ')'",
        ("CREATE TABLE t ‸(a INT", "SELECT count(*) FROM ‸(SELECT max(a) FROM t"),
    ),
    Message(
        "stray_bracket",
        "this ')' closes nothing",
        "take it away, or add the '(' that it belongs to",
        ("CREATE TABLE t (a INT)‸)", "SELECT a‸) FROM t"),
    ),
    Message(
        "too_deep",
        "the statement is nested too deeply here",
        f"at most {MAX_LEVELS} levels of brackets, CASE and types, and as many NOT and signs in a row, can be read",
        (
            f"SELECT {'(' * MAX_LEVELS}‸(1){')' * MAX_LEVELS}",
            f"SELECT ‸{'NOT ' * (MAX_LEVELS + 1)}true",
        ),
    ),
    Message(
        "empty_statement",
        "there is no statement",
        "write one, for example SHOW TABLES",
        ("‸", "‸;", "‸-- only a comment"),
    ),
    Message(
        "several_statements",
        "a second statement begins here",
        "run one statement at a time, or give the text to run_script, which splits it",
        ("DROP TABLE a; ‸DROP TABLE b",),
    ),
    Message(
        "misspelt",
        "unexpected {found}",
        "did you mean {meant}?",
        (
            "CREATE ‸CONTINOUS QUERY q AS SELECT 1",
            "‸CRAETE TABLE t (a INT)",
            "‸SELCT 1",
            "CREATE CONTINUOUS QUERY q ‸COMPTE ON COMMIT SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE ‸TRANSACTIONALLY DELTA SELECT 1",
            "CREATE CONTINUOUS QUERY q COMPUTE ON ‸COMIT SELECT 1",
            "CREATE CONTINUOUS QUERY q AS ‸SELEKT 1",
            "DROP TABLE IF ‸EXIST t",
            "COPY INTO t ‸FORM 'x.csv'",
            "SHOW ‸TABELS",
            "INSERT ‸INTOO t VALUES (1)",
        ),
    ),
    Message(
        "unexpected",
        "unexpected {found}",
        "expected {expected}",
        ("CREATE CONTINUOUS QUERY q PRIMARY KEY (a) ‸= SELECT 1", "CREATE TABLE t (a STRUCT<>‸>)"),
    ),
)

_OTHER: tuple[Message, ...] = (
    Message(
        "set_equals",
        "SET needs '=' and a value",
        "write SET name = value",
        ("SET a ‸5", "SET spark.sql.ansi.enabled‸", "SET a =‸", "SET ‸= 5"),
        r"^SET( name)?( \. name)*( =)? \^",
    ),
    Message(
        "copy_from",
        "FROM 'path' is missing in COPY INTO",
        "write COPY INTO table FROM 'path' FORMAT csv",
        ("COPY INTO t‸", "COPY INTO t (a, b) ‸'x.csv'", "COPY INTO t ‸FORMAT csv"),
        r"^COPY INTO name( \( [^()]* \))? \^",
        "FROM",
    ),
    Message(
        "copy_path",
        "COPY INTO reads files: FROM needs a path as a string",
        "write COPY INTO table FROM 'path'; rows of a query go in with INSERT INTO table SELECT ...",
        ("COPY INTO t FROM ‸s", "COPY INTO t FROM ‸(SELECT 1)", "COPY INTO t FROM‸"),
        r"^COPY INTO .* FROM \^",
    ),
    Message(
        "copy_into",
        "COPY is followed by {found}, not by INTO",
        "write COPY INTO table FROM 'path'",
        ("COPY ‸t FROM 'x'",),
        r"^COPY \^",
    ),
    Message(
        "on_conflict",
        "INSERT has no {words}",
        "write MERGE INTO table USING (SELECT ...) AS s ON table.key = s.key "
        "WHEN MATCHED THEN UPDATE SET ... WHEN NOT MATCHED THEN INSERT ...",
        (
            "INSERT INTO t VALUES (1, 'ON CONFLICT DO') ‸ON CONFLICT (a) DO UPDATE SET b = 2",
            "INSERT INTO t SELECT 1 ‸ON CONFLICT DO NOTHING",
            "INSERT INTO t VALUES (1) ‸on duplicate key UPDATE a = 2",
            "WITH s AS (SELECT 1) INSERT INTO t SELECT * FROM s ‸ON CONFLICT DO NOTHING",
        ),
    ),
    Message(
        "insert_or",
        "no INSERT replaces rows that are there",
        "write MERGE INTO table USING (SELECT ...) AS s ON table.key = s.key "
        "WHEN MATCHED THEN UPDATE SET ... WHEN NOT MATCHED THEN INSERT ...",
        ("INSERT ‸OR REPLACE INTO t VALUES (1)", "‸REPLACE INTO t VALUES (1)", "‸UPSERT INTO t VALUES (1)"),
        r"^INSERT \^ OR$|^\^ (REPLACE|UPSERT)$",
    ),
    Message(
        "dml_word",
        "{last} is followed by {found}",
        "write INSERT INTO table, UPDATE table SET, DELETE FROM table, MERGE INTO table or TRUNCATE TABLE table",
        ("INSERT ‸t VALUES (1)", "DELETE ‸t WHERE a = 1", "TRUNCATE ‸t", "MERGE ‸t USING s", "UPDATE‸"),
        r"^(INSERT|UPDATE|DELETE|MERGE|TRUNCATE) \^",
    ),
    Message(
        "option_value",
        "an option has no value: {found} follows {last}",
        "write name = value",
        ("CREATE CONTINUOUS QUERY q WITH (retention‸) SELECT 1", "COPY INTO t FROM 'x' OPTIONS (header =‸)"),
        r" (WITH|OPTIONS|TBLPROPERTIES|FORMAT_OPTIONS) \( .*\^ [,)]$",
        "NUMBER",
    ),
    Message(
        "option_brackets",
        "{last} needs its options in brackets",
        "write {last} (name = value, ...)",
        ("CREATE TABLE t (a INT) TBLPROPERTIES ‸a = 1", "COPY INTO t FROM 'x' WITH ‸header = true"),
        r" (WITH|OPTIONS|TBLPROPERTIES|FORMAT_OPTIONS) \^",
        "LPAR",
    ),
    Message(
        "duplicate_option",
        "option {option} is given twice",
        "keep one of the two",
        (
            "CREATE CONTINUOUS QUERY q WITH (a = 1, ‸A = 2) SELECT 1",
            "CREATE CAPTURE c INTO t FROM s USING RANGES (rows = 1) ‸WITH (rows = 2)",
        ),
    ),
    Message(
        "trailing_comma",
        "{found} stands where a name should",
        "take the comma beside it away, or add what is missing",
        (
            "CREATE TABLE t (a INT, ‸)",
            "CREATE CONTINUOUS QUERY q PRIMARY KEY (a, ‸) SELECT 1",
            "DROP TABLE ‸, a",
        ),
        r"(, \^ (\)|end)$)|\^ ,$",
        "NAME",
    ),
    Message(
        "empty_name",
        "a name cannot be empty",
        "write at least one character between the backquotes",
        ("DROP TABLE ‸``",),
        r"\^ name$",
        "NAME",
    ),
    Message(
        "string_as_name",
        "a name is expected, not a string",
        "write the name without quotes, or in backquotes: `order line`",
        ("DROP TABLE ‸'t'", 'CREATE CONTINUOUS QUERY ‸"q" AS SELECT 1'),
        r"\^ string$",
        "NAME",
    ),
    Message(
        "reserved_name",
        "{found} cannot stand here as a name",
        "a name is missing before it; put it into backquotes if it is meant as a name",
        (
            "CREATE CONTINUOUS QUERY ‸AS SELECT 1",
            "CREATE CONTINUOUS QUERY q DESTINATION ‸COMPUTE ON COMMIT SELECT 1",
            "CREATE CONTINUOUS QUERY q DESTINATION QUEUE ‸AS SELECT 1",
            "DROP TABLE ‸select",
        ),
    ),
    Message(
        "missing_name",
        "a name is missing: {found} follows {last}",
        "write the name of the object",
        (
            "CREATE CONTINUOUS QUERY‸",
            "REFRESH CONTINUOUS QUERY‸",
            "COMPACT TABLE‸",
            "ALTER TABLE t RENAME TO‸",
        ),
        r"\S \^",
        "NAME",
    ),
    Message(
        "qualified_name",
        "a name has one part here",
        "a warehouse is one schema: leave the part before the point away",
        ("DROP TABLE db‸.t", "CREATE CONTINUOUS QUERY db‸.q AS SELECT 1"),
        r" name \^ \.$",
    ),
    Message(
        "show_what",
        "SHOW cannot show {found}",
        "write SHOW TABLES, SHOW CONTINUOUS QUERIES, SHOW DESTINATIONS, SHOW SOURCES, SHOW CAPTURES, SHOW FUNCTIONS, "
        "SHOW PROCESSES or SHOW REFRESHES [FOR query]",
        ("SHOW ‸VIEWS", "SHOW‸", "SHOW CONTINUOUS ‸QUERY"),
        r"^SHOW( CONTINUOUS)? \^",
    ),
    Message(
        "drop_what",
        "DROP cannot drop {found}",
        "write DROP TABLE, DROP CONTINUOUS QUERY, DROP DESTINATION, DROP SOURCE, DROP CAPTURE or DROP FUNCTION",
        ("DROP ‸VIEW v", "DROP‸"),
        r"^DROP \^",
    ),
    Message(
        "explain_what",
        "EXPLAIN needs what it should explain",
        "write EXPLAIN [ANALYZE] CONTINUOUS QUERY name, or EXPLAIN before a statement",
        ("EXPLAIN‸",),
        r"^EXPLAIN \^",
    ),
    Message(
        "explain_options",
        "{found} is no option of EXPLAIN",
        "write EXPLAIN (FORMAT JSON) CONTINUOUS QUERY name, or FORMAT MERMAID, or ANALYZE with one of them",
        ("EXPLAIN (FORMAT JSON, ‸COSTS) CONTINUOUS QUERY q", "EXPLAIN (ANALYZE ‸verbose) CONTINUOUS QUERY q"),
        r"^EXPLAIN( ANALYZE)? \([^)]*\^",
    ),
    Message(
        "explain_format",
        "{found} is no format of EXPLAIN",
        "the formats are TEXT, JSON and MERMAID",
        ("EXPLAIN (FORMAT ‸XML) CONTINUOUS QUERY q",),
    ),
    Message(
        "explain_options_what",
        "only continuous queries are explained with options",
        "write EXPLAIN (FORMAT JSON) CONTINUOUS QUERY name, or EXPLAIN before a statement",
        ("EXPLAIN (FORMAT JSON) ‸SELECT 1", "EXPLAIN (ANALYZE, FORMAT JSON) ‸TABLE t"),
        r"^EXPLAIN( ANALYZE)? \(.*\) \^",
    ),
    Message(
        "analyze_what",
        "only continuous queries are explained with ANALYZE",
        "write EXPLAIN ANALYZE CONTINUOUS QUERY name (it refreshes the query), or EXPLAIN before a statement",
        ("EXPLAIN ‸ANALYZE SELECT 1", "EXPLAIN ‸ANALYZE"),
    ),
    Message(
        "check_what",
        "{last} is followed by {found}",
        "write CHECK CONSTRAINTS [ON table], COMPACT TABLE table, REFRESH CONTINUOUS QUERY query or REFRESH CAPTURE capture",
        ("CHECK ‸TABLE t", "COMPACT ‸t", "REFRESH ‸TABLE t"),
        r"^(CHECK|COMPACT|REFRESH) \^",
    ),
    Message(
        "unknown_statement",
        "{found} does not begin a statement",
        "statements begin with CREATE, ALTER, DROP, INSERT, UPDATE, DELETE, MERGE, COPY, SELECT, SHOW, ...",
        ("‸GRANT SELECT ON t TO u", "‸42", "‸ANALYZE t"),
        r"^\^",
    ),
    Message(
        "after_the_end",
        "{found} follows the end of the statement",
        "separate statements by semicolons",
        ("DROP TABLE t ‸DROP TABLE s", "REFRESH CONTINUOUS QUERY q ‸NOW", "SHOW TABLES ‸LIKE 'a'"),
        r"\^",
        "$END",
    ),
)

MESSAGES: tuple[Message, ...] = (
    _TEXT
    + DESTINATION_MESSAGES
    + SOURCE_MESSAGES
    + CREATE_MESSAGES
    + ALTER_MESSAGES
    + TABLE_MESSAGES
    + _OTHER
)
BY_KEY: dict[str, Message] = {message.key: message for message in MESSAGES}
