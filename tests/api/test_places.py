"""Errors about a statement say where in it: at the word that they are about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.errors import CQError


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("places") / "warehouse"
    with cq_engine.connect(path, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (i INT PRIMARY KEY, v INT)")
        opened.execute("CREATE TABLE u (i INT PRIMARY KEY)")
        opened.execute("CREATE CONTINUOUS QUERY q AS SELECT i, v FROM t")
        yield opened


BAD = """
CREATE CONTINUOUS QUERY p AS SELECT i, ^rand() AS v FROM t
CREATE CONTINUOUS QUERY p AS SELECT i, TIMESTAMP '^now' AS v FROM t
CREATE CONTINUOUS QUERY p AS SELECT i AS ^_x FROM t
CREATE CONTINUOUS QUERY p WITH (^refrsh = full) AS SELECT i FROM t
CREATE CONTINUOUS QUERY p PRIMARY KEY (^zz) AS SELECT i, v FROM t
CREATE CONTINUOUS QUERY ^q AS SELECT i FROM t
REFRESH CONTINUOUS QUERY ^nosuch
ALTER CONTINUOUS QUERY ^nosuch PAUSE
EXPLAIN CONTINUOUS QUERY ^nosuch
SHOW REFRESHES FOR ^nosuch
FOLLOW ^nosuch
SELECT * FROM ^q VERSION AS OF 99
SELECT ^w FROM t
DROP TABLE ^t
DROP TABLE ^nosuch
COMPACT TABLE ^nosuch
VACUUM ^nosuch
DESCRIBE ^nosuch
CREATE TABLE ^t (i INT)
CREATE TABLE x (^i INT, i STRING)
ALTER TABLE t ADD FOREIGN KEY (v) REFERENCES ^w (i)
ALTER TABLE t ADD FOREIGN KEY (^vv) REFERENCES u (i)
INSERT INTO t (i, ^w) VALUES (1, 2)
INSERT INTO /* t */ ^t VALUES (1, 2, 3)
UPDATE t SET ^w = 1
INSERT INTO t SELECT length('nosuch'), ^nosuch FROM u
DELETE FROM ^tt
MERGE INTO t USING u ON t.i = u.i WHEN MATCHED THEN UPDATE SET ^w = 1
CREATE DESTINATION d TYPE ^kafkaa WITH (x = 1)
ALTER DESTINATION ^nosuch PAUSE
DROP DESTINATION ^nosuch
DEQUEUE FROM ^nosuch
DROP FUNCTION ^nosuch
SET ^nosuch = 1
SET ^retention = long
""".strip().splitlines()


@pytest.mark.parametrize("marked", BAD)
def test_the_caret_stands_under_the_word(engine: Engine, marked: str) -> None:
    sql = marked.replace("^", "")
    with pytest.raises(CQError) as caught:
        engine.execute(sql)
    place = caught.value.location
    assert place is not None, caught.value
    assert (place.source, place.line, place.column) == ("<input>", 1, marked.index("^") + 1)
    assert place.text == sql


def test_in_a_script_it_is_the_scripts_line(engine: Engine, tmp_path: Path) -> None:
    script = tmp_path / "some.cql"
    script.write_text("SELECT 1;\n\n  DROP\n TABLE nosuch;\n")
    with pytest.raises(CQError) as caught:
        list(engine.run_script(script))
    place = caught.value.location
    assert place is not None
    assert (Path(place.source).name, place.line, place.column) == ("some.cql", 4, 8)


def test_words_that_are_not_the_statements_give_no_place(engine: Engine) -> None:
    with pytest.raises(CQError) as caught:
        engine.execute("COMMIT")
    assert caught.value.location is None
