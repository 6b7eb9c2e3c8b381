"""Canonical text: `parse(format_statement(s)) == s` for statements of every kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from cq_engine.grammar import clauses as cl
from cq_engine.grammar import format_statement, parse
from cq_engine.grammar import statements as st
from cq_engine.grammar.format import format_when
from cq_engine.grammar.parser import keywords


def classes(base: type) -> set[type]:
    return {base, *(found for child in base.__subclasses__() for found in classes(child))}


KEYWORDS = sorted({word for words in keywords().values() for word in words})
name = some.one_of(
    some.sampled_from(["t", "acct", "order line", "a`b", "1a", "select", "été", "a;b", "--", "a.b", "'"]),
    some.sampled_from(KEYWORDS).flatmap(lambda word: some.sampled_from([word, word.lower()])),
    some.text(min_size=1, max_size=8),
)
names = some.lists(name, min_size=1, max_size=3).map(tuple)
words = some.text(max_size=12)
flag = some.booleans()
option_name = some.one_of(some.sampled_from(["a", "a.b", "header", "", "x y"]), words.map(str.lower)).filter(
    lambda text: text == text.lower()
)
options = some.dictionaries(option_name, words, max_size=3).map(lambda found: tuple(found.items()))
unit = some.sampled_from(["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH"])
count = some.integers(1, 10**9 - 1)
message_id = some.sampled_from(["d1234a3b17", "a1a1a1"]) | words


def subset(all_of: tuple[str, ...]) -> some.SearchStrategy[tuple[str, ...]]:
    chosen = some.sets(some.sampled_from(all_of), min_size=1)
    return chosen.map(lambda found: tuple(item for item in all_of if item in found))


when: some.SearchStrategy[cl.When] = some.one_of(
    some.builds(cl.OnCommit),
    some.builds(cl.OnDemand),
    some.builds(cl.EveryInterval, count, unit),
    some.builds(cl.StartWithPeriod, words, count, unit),
    some.builds(cl.Cron, some.sampled_from(["0 6 * * mon", "*/5 * * * *"])),
    some.builds(cl.OnDml, subset(("INSERT", "DELETE", "UPDATE")), names),
)
kind = some.sampled_from([None, "TABLE", "CALLBACK", "QUEUE", "TRIGGER", "WEBHOOK"])
destinations = some.lists(some.builds(cl.DestinationRef, name, kind), max_size=3).map(tuple)
start = some.one_of(
    some.builds(cl.StartFrom, some.sampled_from(["NOW", "SNAPSHOT"])),
    some.builds(cl.StartFrom, some.just("VERSION"), some.integers(0, 2**63 - 1)),
)
markers = subset(("I", "D", "U"))
query = some.sampled_from(
    [
        "SELECT 1",
        "with x as (select ';' /* ( */ from t) -- )\n select * from x",
        "VALUES (1)",
        "FROM t SELECT a",
        "(SELECT 'a''b' FROM `c``d`) UNION (SELECT 2)",
        "SELECT a\n  FROM t\n WHERE b = \"--\" /* c /* d */ e */ AND r'\\' = c",
    ]
)
simple_type = some.sampled_from(
    [
        "INT",
        "DECIMAL(10,2)",
        "STRING",
        "STRING COLLATE UTF8_LCASE",
        "VARCHAR(5)",
        "INTERVAL DAY TO SECOND",
        "TIME(6)",
    ]
)
column_type = some.recursive(
    simple_type,
    lambda inner: some.one_of(
        inner.map(lambda text: f"ARRAY<{text}>"),
        some.tuples(inner, inner).map(lambda pair: f"MAP<{pair[0]}, {pair[1]}>"),
        inner.map(lambda text: f"STRUCT<a: {text} NOT NULL, `b c`: INT COMMENT 'it\\'s'>"),
    ),
    max_leaves=4,
)
column = some.builds(cl.ColumnSpec, name, column_type, flag, some.none() | words)
columns = some.lists(column, min_size=1, max_size=4).map(tuple)
primary_key = some.builds(cl.PrimaryKeySpec, names, flag, flag, some.none() | name)
foreign_key = some.builds(
    cl.ForeignKeySpec, names, name, some.just(()) | names, some.none() | name, flag, flag
)

create_table = some.builds(
    st.CreateTable,
    name,
    columns,
    some.none() | primary_key,
    some.lists(foreign_key, max_size=2).map(tuple),
    some.just(()) | names,
    options,
    some.none() | query,
    flag,
    some.none() | words,
)
create_table_without = some.builds(
    st.CreateTable, name, columns, primary_key, options=options, if_not_exists=flag, snapshot=some.just(False)
)
create_table_remote = some.builds(
    st.CreateTable, name, some.just(()) | columns, primary_key, if_not_exists=flag,
    remote=some.one_of(
        some.builds(cl.RemoteRelation, name, words.filter(str.strip)),
        some.builds(cl.RemoteRelation, name, words.filter(str.strip), some.just(True), options),
    ),
)  # fmt: skip
create_table_as = some.builds(st.CreateTable, name, options=options, query=query, if_not_exists=flag)
create_query = some.builds(
    st.CreateContinuousQuery,
    name=name,
    query=query,
    primary_key=some.none() | some.just(()) | names,
    mode=some.sampled_from(["TRANSACTIONAL", "COMPRESSED"]),
    markers=markers,
    when=when,
    destinations=destinations,
    start=start,
    options=options,
    consistency=some.sampled_from([None, "COMPLETE", "STRONG", "CONVERGENT"]),
)
alter_query = some.one_of(
    some.builds(st.AlterContinuousQuery, name, some.just("PAUSE")),
    some.builds(st.AlterContinuousQuery, name, some.just("RESUME"), some.none() | start),
    some.builds(
        st.AlterContinuousQuery,
        name,
        some.just("SET"),
        some.none(),
        some.none() | when,
        some.none() | markers,
        destinations,
        options,
    ),
)
alter_table = some.one_of(
    some.builds(st.AlterTable, name, some.just("ADD COLUMNS"), columns),
    some.builds(st.AlterTable, name, some.just("ADD FOREIGN KEY"), foreign_key=foreign_key),
    some.builds(st.AlterTable, name, some.just("CLUSTER BY"), cluster_by=some.just(()) | names),
    some.builds(st.AlterTable, name, some.just("RENAME"), new_name=name),
)
schedule: some.SearchStrategy[cl.When] = some.one_of(
    some.builds(cl.OnDemand),
    some.builds(cl.EveryInterval, count, unit),
    some.builds(cl.StartWithPeriod, words, count, unit),
    some.builds(cl.Cron, some.just("0 6 * * mon")),
)
said = words.filter(str.strip)
method = some.one_of(
    some.builds(cl.CaptureMethod, some.just("TIMESTAMP"), name, some.none() | name, options=options),
    some.builds(cl.CaptureMethod, some.just("CHECKSUM"), some.none() | name, options=options),
    some.builds(cl.CaptureMethod, some.sampled_from(["COPY", "LOG"]), options=options),
    some.builds(
        cl.CaptureMethod,
        some.just("RANGES"),
        checksum=flag,
        options=options
        | options.map(lambda given: (("rows", "1000"), *given))
        | options.map(lambda given: (*given, ("rows", "it's"))),
    ),
)
captured = some.lists(some.builds(cl.CapturedColumn, name, name), max_size=3).map(tuple)
create_capture = some.one_of(
    some.builds(
        st.CreateCapture, name, name, name, method, some.none() | said, captured, some.none() | said, schedule,
        options, flag,
    ),
    some.builds(
        st.CreateCapture,
        name,
        name,
        name,
        some.builds(cl.CaptureMethod, some.just("VIEW"), query=said, options=options),
        columns=captured,
        when=schedule,
        options=options,
    ),
)  # fmt: skip
body = some.sampled_from(["(a INT) RETURN a", "() RETURNS STRING DETERMINISTIC RETURN 'x)'"])
dml = some.sampled_from(
    [
        st.Dml("INSERT", "INSERT INTO t VALUES ('a;b')"),
        st.Dml("UPDATE", "update t set a = 1"),
        st.Dml("DELETE", "DELETE FROM `t` /* all */ WHERE true"),
        st.Dml("MERGE", "MERGE INTO t USING s ON a = b WHEN MATCHED THEN DELETE"),
        st.Dml("TRUNCATE", "TRUNCATE TABLE t"),
        st.Dml("INSERT", "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x"),
    ]
)
dotted = some.lists(name.filter(lambda text: "." not in text), min_size=1, max_size=3).map(".".join)
statements: dict[type[st.Statement], some.SearchStrategy[st.Statement]] = {
    st.CreateContinuousQuery: create_query,
    st.AlterContinuousQuery: alter_query,
    st.RefreshContinuousQuery: some.builds(st.RefreshContinuousQuery, name),
    st.Follow: some.builds(st.Follow, name, start),
    st.DropContinuousQuery: some.builds(st.DropContinuousQuery, name, flag, flag),
    st.CreateDestination: some.builds(
        st.CreateDestination,
        name,
        some.sampled_from(["TABLE", "A`B"]),
        options,
        flag,
        some.none()
        | some.builds(
            cl.Script,
            some.sampled_from(
                ["DELETE FROM t", "DELETE FROM t; -- END\nINSERT INTO t SELECT CASE 1 WHEN 2 THEN 3 END;"]
            ),
            some.sampled_from(["", "a > (1)"]),
            flag,
        ),
    ),
    st.AlterDestination: some.one_of(
        some.builds(st.AlterDestination, name, some.sampled_from(["PAUSE", "RESUME"])),
        some.builds(st.AlterDestination, name, some.just("SET"), options),
        some.builds(
            st.AlterDestination,
            name,
            some.sampled_from(["REPLAY", "SKIP"]),
            some.just(()),
            some.none() | name,
            some.integers(0, 2**63 - 1),
        ),
        some.builds(st.AlterDestination, name, some.just("DROP GROUP"), group=name),
    ),
    st.DropDestination: some.builds(st.DropDestination, name, flag, flag),
    st.CreateSource: some.builds(st.CreateSource, name, some.sampled_from(["sqlite", "a`b"]), options, flag),
    st.AlterSource: some.builds(st.AlterSource, name, options),
    st.DropSource: some.builds(st.DropSource, name, flag, flag),
    st.CreateCapture: create_capture,
    st.AlterCapture: some.one_of(
        some.builds(st.AlterCapture, name, some.sampled_from(["PAUSE", "RESUME"])),
        some.builds(st.AlterCapture, name, some.just("SET"), schedule, options),
        some.builds(st.AlterCapture, name, some.just("SET"), some.none(), options.filter(bool)),
    ),
    st.RefreshCapture: some.builds(st.RefreshCapture, name),
    st.DropCapture: some.builds(st.DropCapture, name, flag),
    st.AdviseCapture: some.builds(st.AdviseCapture, name, said, flag),
    st.Dequeue: some.builds(
        st.Dequeue, name, count, some.none() | name, some.none() | some.tuples(count, unit)
    ),
    st.Ack: some.builds(st.Ack, name, message_id, some.none() | name),
    st.Reject: some.builds(st.Reject, name, message_id, some.none() | name, flag),
    st.CreateTable: create_table | create_table_without | create_table_remote | create_table_as,
    st.AlterTable: alter_table,
    st.DropTable: some.builds(st.DropTable, name, flag, flag),
    st.CompactTable: some.builds(st.CompactTable, name),
    st.Vacuum: some.builds(
        st.Vacuum,
        some.none() | name,
        some.none()
        | some.builds("{} {}".format, some.integers(0, 10**6), some.sampled_from(["HOUR", "DAY", "WEEK"])),
    ),
    st.CheckConstraints: some.builds(st.CheckConstraints, some.none() | name),
    st.CreateFunction: some.one_of(
        some.builds(st.CreateFunction, name, body, flag),
        some.builds(st.CreateFunction, name, body, some.just(False), flag),
    ),
    st.DropFunction: some.builds(st.DropFunction, name, flag),
    st.Dml: dml,
    st.CopyInto: some.builds(
        st.CopyInto,
        name,
        words,
        some.sampled_from([None, "csv", "json", "parquet"]),
        some.just(()) | names,
        options,
    ),
    st.Begin: some.just(st.Begin()),
    st.Commit: some.just(st.Commit()),
    st.Rollback: some.just(st.Rollback()),
    st.Query: some.builds(st.Query, query),
    st.Show: some.one_of(
        some.builds(
            st.Show,
            some.sampled_from(
                [
                    "TABLES",
                    "CONTINUOUS QUERIES",
                    "DESTINATIONS",
                    "SOURCES",
                    "CAPTURES",
                    "FUNCTIONS",
                    "PROCESSES",
                ]
            ),
        ),
        some.builds(st.Show, some.just("REFRESHES"), some.none() | name),
    ),
    st.Describe: some.builds(
        st.Describe,
        name,
        some.sampled_from([None, "TABLE", "CONTINUOUS QUERY", "DESTINATION", "SOURCE", "CAPTURE"]),
    ),
    st.Explain: some.builds(st.Explain, name=name, analyze=some.booleans())
    | some.builds(st.Explain, text=query),
    st.SetOption: some.builds(st.SetOption, dotted, words),
}


def test_every_class_is_formatted_and_generated():
    concrete = classes(st.Statement) - {st.Statement}
    assert concrete <= set(format_statement.registry)
    assert concrete == set(statements)
    frequencies = {cl.OnCommit, cl.OnDemand, cl.EveryInterval, cl.StartWithPeriod, cl.Cron, cl.OnDml}
    assert frequencies <= set(format_when.registry)


@pytest.mark.parametrize("kind_of", statements, ids=lambda kind_of: kind_of.__name__)
def test_round_trip(kind_of):
    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(statements[kind_of])
    def check(statement):
        text = format_statement(statement)
        assert parse(text) == statement
        assert parse(f"/* a */ {text} ; -- b") == statement

    check()


def test_canonical_create_query():
    statement = parse(
        "create continuous query q with (b=1) destination table d, e compute every 5 seconds select 1"
    )
    assert format_statement(statement) == (
        "CREATE CONTINUOUS QUERY q\n"
        "  COMPUTE TRANSACTIONAL DELTA EVERY INTERVAL '5' SECOND\n"
        "  DESTINATION TABLE d, e\n"
        "  WITH (b = '1')\n"
        "AS\n"
        "select 1"
    )


def test_canonical_create_table():
    text = (
        "CREATE TABLE t (\n"
        "  a INT NOT NULL,\n"
        "  b STRUCT<c: INT, d: ARRAY<STRING>> COMMENT 'x',\n"
        "  PRIMARY KEY (a) NOT ENFORCED RELY,\n"
        "  FOREIGN KEY (a) REFERENCES s (a) RELY\n"
        ")\n"
        "CLUSTER BY (a)"
    )
    assert format_statement(parse(text)) == text
