"""Whatever the text, `parse` gives a statement or a CQSyntaxError with a place and a hint; nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from cq_engine.core.errors import CQSyntaxError
from cq_engine.grammar import Statement, format_statement, parse
from cq_engine.grammar.messages import MESSAGES
from cq_engine.grammar.parser import keywords

WORDS = sorted({word for words in keywords().values() for word in words})
PIECES = [
    *WORDS,
    "q",
    "t",
    "`a b`",
    "'s'",
    "'7'",
    "5",
    "(",
    ")",
    ",",
    "=",
    ".",
    "<",
    ">",
    ":",
    ";",
    "INT",
    "\n",
    "--",
    "/*",
    "'",
]
SEEDS = [
    "CREATE CONTINUOUS QUERY q PRIMARY KEY (a) COMPUTE TRANSACTIONAL INSERT DELETE DELTA ON COMMIT DESTINATION d AS SELECT a",
    "CREATE CONTINUOUS QUERY q COMPUTE START '01-01-2007' WITH PERIOD 1 DAY START FROM VERSION 3 WITH (a = 1) VALUES (1)",
    "CREATE TABLE t (a INT NOT NULL, b STRUCT<c: DECIMAL(3,2)>, PRIMARY KEY (a) NOT ENFORCED) CLUSTER BY (a) AS SELECT 1",
    "ALTER CONTINUOUS QUERY q SET COMPUTE ON INSERT OR UPDATE TO t, u DESTINATION QUEUE x WITH (a = 'b')",
    "ALTER CONTINUOUS QUERY q AS WITH w AS (SELECT 1) SELECT * FROM w",
    "DEQUEUE 5 FROM q GROUP 'g' WAIT 5 SECONDS",
    "CREATE CAPTURE c INTO t FROM s TABLE 'r' (a AS b, c) WHERE 'x' USING TIMESTAMP (ts, DELETED d) WITH (o = 1) EVERY 5 SECONDS",
    "CREATE CAPTURE c INTO t FROM s TABLE 'r' USING RANGES (rows = 1000, CHECKSUM) CRON '* * * * *' WITH (a = 'b')",
    "COPY INTO t (a, b) FROM 'x' FORMAT csv OPTIONS (header = true)",
    *(example.replace("‸", "") for message in MESSAGES for example in message.examples[:1]),
]


def outcome(text: str) -> Statement | CQSyntaxError:
    try:
        return parse(text)
    except CQSyntaxError as error:
        return error


def check(text: str) -> None:
    found = outcome(text)
    if isinstance(found, Statement):
        assert parse(format_statement(found)) == found
        return
    assert found.message
    assert found.hint
    assert found.location is not None
    lines = text.split("\n")
    assert 1 <= found.location.line <= len(lines)
    assert 1 <= found.location.column <= len(lines[found.location.line - 1]) + 1
    assert found.render()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(some.lists(some.sampled_from(PIECES), max_size=14).map(" ".join))
def test_words_of_the_language_in_any_order(text):
    check(text)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(some.text(max_size=30))
def test_any_characters(text):
    check(text)


@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_statements(seed):
    chance = random.Random(seed)
    for _ in range(12):
        words = seed.split(" ")
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(words) + 1)
            what = chance.randrange(4)
            if what == 0:
                words[at : at + 1] = []
            elif what == 1:
                words.insert(at, chance.choice(PIECES))
            elif what == 2:
                words[at : at + 1] = [chance.choice(PIECES)]
            elif at < len(words) and words[at]:
                cut = chance.randrange(len(words[at]))
                words[at] = words[at][:cut] + words[at][cut + 1 :]
        check(" ".join(words))


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_every_prefix(seed):
    for end in range(len(seed)):
        check(seed[:end])
