"""Tables that stay at their sources: declared, looked at, read as they are now, and nothing else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from cq_engine import AnalysisError, CatalogError, CQError, Engine, SourceError
from cq_engine.core.limits import Limits
from tests.sources.shops import TEXT, TYPES, Shop

REMOTE = (
    "CREATE TABLE r (id INT, code STRING, note STRING, price DECIMAL(10, 2), day DATE, x DOUBLE, PRIMARY KEY (id))"
    " REMOTE FROM shop TABLE 'things'"
)
ROWS: list[tuple[Any, ...]] = [
    (1, "a", "x", Decimal("1.50"), "2026-01-01", 0.5),
    (2, "A", None, Decimal("-3.00"), "2026-01-02", None),
    (3, "b", "it's", None, "2026-02-01", 0.1),
    (4, None, "100 %", Decimal("0.10"), None, 1e10),
    (5, "a ", "", Decimal("1.50"), "1999-12-31", -0.0),
]


@pytest.fixture
def things(shop: Shop) -> Iterator[Shop]:
    """A table with a column that the source compares without case."""
    key, text, double = TYPES[shop.kind]["key"], TEXT[shop.kind], TYPES[shop.kind]["double"]
    shop.run("DROP TABLE IF EXISTS things")
    shop.run(
        f"CREATE TABLE things (id INT NOT NULL PRIMARY KEY, code {key}, note {text}, price DECIMAL(10, 2), day DATE, x {double})"
    )
    plain = [
        tuple(float(v) if isinstance(v, Decimal) and shop.kind == "sqlite" else v for v in row)
        for row in ROWS
    ]
    shop.insert("things", plain)
    yield shop
    shop.run("DROP TABLE things")


@pytest.fixture
def engine(opened: Callable[..., Engine], things: Shop) -> Engine:
    found = opened(Limits())
    found.execute(f"CREATE SOURCE shop TYPE {things.kind} WITH (url = '{things.url}')")
    found.execute(REMOTE)
    return found


def test_it_is_shown_as_what_it_is(engine: Engine) -> None:
    assert engine.execute("SHOW TABLES").fetchall() == [("r", 6, "(id)", False, "shop: things")]
    described = engine.execute("DESCRIBE r")
    assert described.columns[:2] == ["column", "type"]
    assert described.message == "its rows stay at source shop, TABLE 'things'"
    assert ("table", "r, which stays there") in engine.execute("DESCRIBE SOURCE shop").fetchall()


def test_without_columns_it_has_those_of_the_source(engine: Engine) -> None:
    engine.execute("CREATE TABLE all_of_it REMOTE FROM shop TABLE 'things'")
    described = engine.execute("DESCRIBE all_of_it").fetchall()
    assert [(row[0], row[3]) for row in described] == [
        ("id", True), ("code", False), ("note", False), ("price", False), ("day", False), ("x", False),
    ]  # fmt: skip
    assert len(engine.execute("SELECT * FROM all_of_it").fetchall()) == len(ROWS)


def test_a_select_reads_what_is_there_now(engine: Engine, things: Shop) -> None:
    result = engine.execute("SELECT id, note FROM r ORDER BY id")
    assert result.fetchall() == [(row[0], row[2]) for row in ROWS]
    assert result.message == "read at its source, as of now: r"
    things.run("UPDATE things SET note = 'new' WHERE id = 1")
    assert engine.execute("SELECT note FROM r WHERE id = 1").fetchall() == [("new",)]


def test_columns_and_conditions_go_along(engine: Engine) -> None:
    plan = "\n".join(
        row[0]
        for row in engine.execute("EXPLAIN SELECT q.note FROM r q WHERE q.id >= 2 AND q.x = 0.5 AND 3 > q.id")
    )
    statement = plan.splitlines()[0]
    assert statement.startswith("r: read at source shop as it is now: SELECT")
    assert statement.endswith("[2, 3]")  # not what is compared with a double
    assert "price" not in statement
    assert "note" in statement


def test_a_pivot_groups_by_what_it_does_not_name(engine: Engine) -> None:
    engine.execute("CREATE TABLE copy AS SELECT * FROM r")
    pivot = "SELECT a, b FROM {} PIVOT (count(price) FOR note IN ('x' AS a, '' AS b))"
    copied = engine.execute(pivot.format("copy")).fetchall()
    assert len(copied) > 1
    assert sorted(engine.execute(pivot.format("r")).fetchall(), key=repr) == sorted(copied, key=repr)


def test_what_goes_along_changes_no_result(engine: Engine) -> None:
    """Every condition over a copy, where nothing goes along, and over the table."""
    engine.execute("CREATE TABLE copy AS SELECT * FROM r")
    dice = random.Random(4)
    literals = {
        "id": ["1", "3", "-2", "99999999999", "2.5"],
        "code": ["'a'", "'A'", "'a '", "'it''s'", "5"],
        "note": ["'x'", "'100 %'", "''", "'it''s'"],
        "price": ["1.5", "1", "-3.00", "0.1"],
        "day": ["DATE '2026-01-01'", "DATE '1999-12-31'"],
        "x": ["0.1", "0", "1e10"],
    }
    for _ in range(8):
        parts = []
        for _ in range(dice.randint(1, 2)):
            column = dice.choice(list(literals))
            value, other = dice.choices(literals[column], k=2)
            sign = dice.choice(["=", "<", "<=", ">", ">=", "<>"])
            forms = [
                "c {0} a",
                "a < c",
                "c IN (a, b)",
                "c BETWEEN a AND b",
                "c IS NULL",
                "c IS NOT NULL",
                "NOT c = a",
            ]
            words = {"c": f"t.{column}", "a": value, "b": other}
            form = dice.choice(forms).format(sign)
            parts.append(re.sub(r"\b[abc]\b", lambda found, words=words: words[found[0]], form))
        where = f" {dice.choice(['AND', 'AND', 'OR'])} ".join(parts)
        join = dice.choice(["", "", "JOIN copy c ON c.id = t.id", "RIGHT JOIN copy c ON c.id = t.id + 1"])
        texts = [f"SELECT t.* FROM {table} t {join} WHERE {where}" for table in ("r", "copy")]
        try:
            found, wanted = (sorted(engine.execute(text).fetchall(), key=repr) for text in texts)
        except CQError as error:
            assert "CAST_INVALID_INPUT" in str(error.detail), where  # noqa: PT017 - 'x' as a number, over either
            continue
        assert found == wanted, where


def test_many_rows_are_read_by_a_task_and_not_in_a_transaction(
    opened: Callable[..., Engine], things: Shop
) -> None:
    engine = opened(Limits(pending_rows=2))
    engine.execute(f"CREATE SOURCE shop TYPE {things.kind} WITH (url = '{things.url}')")
    engine.execute(REMOTE)
    assert engine.execute("SELECT id, code FROM r ORDER BY id").fetchall() == [row[:2] for row in ROWS]
    assert engine.execute("SELECT count(*) FROM r").fetchall() == [(len(ROWS),)]
    engine.execute("CREATE TABLE t (id INT, note STRING)")
    engine.execute("INSERT INTO t SELECT id, note FROM r WHERE id < 3")
    with pytest.raises(SourceError, match="more than 2 rows of table r"):
        engine.execute("INSERT INTO t SELECT id, note FROM r")


REFUSED = [
    ("INSERT INTO r (id) VALUES (1)", "INSERT is not for table r"),
    ("UPDATE r SET id = 1", "UPDATE is not for table r"),
    ("DELETE FROM r", "DELETE is not for table r"),
    ("MERGE INTO r USING r AS s ON r.id = s.id WHEN MATCHED THEN DELETE", "MERGE is not for table r"),
    ("TRUNCATE TABLE r", "TRUNCATE is not for table r"),
    ("COPY INTO r FROM '/nowhere.csv'", "COPY INTO is not for table r"),
    ("COMPACT TABLE r", "COMPACT TABLE is not for table r"),
    ("CHECK CONSTRAINTS ON r", "CHECK CONSTRAINTS is not for table r"),
    ("ALTER TABLE r ADD COLUMN y INT", "ALTER TABLE ADD COLUMNS is not for table r"),
    ("SELECT * FROM r VERSION AS OF 1", "a version"),
    ("SELECT * FROM r CHANGES FROM VERSION 1", "CHANGES FROM VERSION is not for table r"),
    ("CREATE CONTINUOUS QUERY q AS SELECT id FROM r", "a continuous query over r needs CONSISTENCY"),
    ("CREATE CAPTURE c INTO r FROM shop TABLE 'things' USING CHECKSUM", "a capture is not for table r"),
    ("CREATE TABLE f (id INT, FOREIGN KEY (id) REFERENCES r (id))", "a FOREIGN KEY is not for table r"),
    ("CREATE TABLE s (idd INT) REMOTE FROM shop TABLE 'things'", "has no column idd"),
    ("CREATE TABLE s (id INT, x INT, PRIMARY KEY (x)) REMOTE FROM shop TABLE 'things'", r"\(x\) is no key"),
    ("CREATE TABLE s REMOTE FROM shop TABLE 'thing'", "has no table thing"),
    ("CREATE TABLE s REMOTE FROM nowhere TABLE 'things'", "there is no source nowhere"),
    ("CREATE TABLE s REMOTE FROM shop TABLE 'things' USING LOG", "has to say that a log may be installed"),
    ("DROP SOURCE shop", "source shop is in use"),
]


def test_what_needs_rows_here_is_refused(engine: Engine) -> None:
    for sql, said in REFUSED:
        with pytest.raises((AnalysisError, CatalogError, SourceError), match=said) as caught:
            engine.execute(sql)
        assert caught.value.hint, sql


def test_only_postgresql_has_slots(engine: Engine, things: Shop) -> None:
    sql = "CREATE TABLE s REMOTE FROM shop TABLE 'things' USING LOG WITH (slot = 'a')"
    if things.kind == "postgresql":  # the slot is made for the queries over it
        engine.execute(sql)
        assert engine.execute("SELECT * FROM s").fetchall() == engine.execute("SELECT * FROM r").fetchall()
        return
    with pytest.raises(AnalysisError, match="there is no option slot") as caught:
        engine.execute(sql)
    assert caught.value.hint


def test_it_goes_with_its_source(engine: Engine) -> None:
    engine.execute("DROP TABLE r")
    engine.execute(REMOTE)
    assert engine.execute("DROP SOURCE shop CASCADE").message == "source shop dropped; table r dropped"
    assert engine.execute("SHOW TABLES").fetchall() == []


def test_a_source_that_is_gone_is_an_error(engine: Engine, things: Shop) -> None:
    things.run("ALTER TABLE things RENAME TO others")
    try:
        with pytest.raises(SourceError, match="has no table things"):
            engine.execute("SELECT * FROM r")
    finally:
        things.run("ALTER TABLE others RENAME TO things")


def test_text_that_is_no_text_there(opened: Callable[..., Engine], shop: Shop) -> None:
    """What the source would refuse, or compare otherwise, does not go along, and cannot join."""
    kind = {"postgresql": "uuid", "mariadb": "ENUM('a', 'b')", "sqlite": "BLOB"}[shop.kind]
    value = "00000000-0000-0000-0000-000000000001" if shop.kind == "postgresql" else "a"
    shop.run("DROP TABLE IF EXISTS odd")
    shop.run(f"CREATE TABLE odd (id INT NOT NULL PRIMARY KEY, u {kind})")
    shop.run(f"INSERT INTO odd VALUES (1, '{value}')")
    engine = opened(Limits())
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    remote = "REMOTE FROM shop TABLE 'odd' USING LOG WITH (install = true)"
    engine.execute(f"CREATE TABLE odd (id INT, u STRING, PRIMARY KEY (id)) {remote}")
    assert engine.execute("SELECT id FROM odd WHERE u = 'neither'").fetchall() == []
    assert engine.execute(f"SELECT id FROM odd WHERE u = '{value}'").fetchall() == [(1,)]
    with pytest.raises(AnalysisError, match="cannot be asked for by its values"):
        engine.execute(
            "CREATE CONTINUOUS QUERY q CONSISTENCY STRONG AS SELECT a.id FROM odd a JOIN odd b ON a.u = b.u"
        )
    shop.run("DROP TABLE odd")
