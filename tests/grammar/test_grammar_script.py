"""Scripts: where statements begin and end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from cq_engine.core.errors import CQSyntaxError
from cq_engine.grammar import is_complete, parse, split


def texts(script: str) -> list[str]:
    return [item.text for item in split(script)]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (" ;; -- nothing; here\n ; /* nor; here */", []),
        ("A; B", ["A", "B"]),
        ("A;B;", ["A", "B"]),
        ("SELECT ';' ; B", ["SELECT ';'", "B"]),
        ("SELECT 'it''s;', \"a;\"\";b\", `x;``;y`; B", ["SELECT 'it''s;', \"a;\"\";b\", `x;``;y`", "B"]),
        (r"SELECT 'a\';b'; B", [r"SELECT 'a\';b'", "B"]),
        (r"SELECT r'\'; B", [r"SELECT r'\'", "B"]),
        ("A -- x;y\n z; B", ["A -- x;y\n z", "B"]),
        ("A /* ; /* ; */ ; */ z; B", ["A /* ; /* ; */ ; */ z", "B"]),
        ("-- first\nA -- last\n; B", ["A", "B"]),
        ("A (; B)", ["A (", "B)"]),
        ("A; SELECT 'open; B", ["A", "SELECT 'open; B"]),
        ("A; /* open; B", ["A", "/* open; B"]),
        ("BEGIN; A; COMMIT; END; B", ["BEGIN", "A", "COMMIT", "END", "B"]),
        (
            "A; create destination d type trigger as begin B; CASE ';' END; C; END WITH (x = 1); D; E",
            [
                "A",
                "create destination d type trigger as begin B; CASE ';' END; C; END WITH (x = 1)",
                "D",
                "E",
            ],
        ),
        ("CREATE DESTINATION d AS BEGIN A; B", ["CREATE DESTINATION d AS BEGIN A; B"]),
        ("CREATE DESTINATION d AS BEGIN A END; B; C;", ["CREATE DESTINATION d AS BEGIN A END", "B", "C"]),
        (
            "CREATE DESTINATION d AS BEGIN A; END; CREATE DESTINATION e AS BEGIN B; END; C",
            ["CREATE DESTINATION d AS BEGIN A; END", "CREATE DESTINATION e AS BEGIN B; END", "C"],
        ),
    ],
)
def test_split(script, expected):
    assert texts(script) == expected


def test_positions():
    script = "A;\n  -- why\n  BC\n D; E"
    items = split(script, "x.cq")
    assert [(i.text, i.source, i.line, i.column, i.offset) for i in items] == [
        ("A", "x.cq", 1, 1, 0),
        ("BC\n D", "x.cq", 3, 3, 14),
        ("E", "x.cq", 4, 5, 21),
    ]
    assert all(script[i.offset :].startswith(i.text) for i in items)


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1;", True),
        ("SELECT 1; -- so", True),
        ("SELECT 1", False),
        ("", False),
        ("SELECT ';", False),
        ("SELECT 1 /* ;", False),
        ("SELECT 1 -- ;", False),
        ("CREATE DESTINATION d TYPE trigger AS BEGIN A;", False),
        ("CREATE DESTINATION d TYPE trigger AS BEGIN A; END", False),
        ("CREATE DESTINATION d TYPE trigger AS BEGIN A; END;", True),
        ("A; B", False),
        ("SELECT `;", False),
    ],
)
def test_is_complete(text, complete):
    assert is_complete(text) is complete


def test_an_open_comment_is_reported_by_parse():
    (item,) = split("/* open; SELECT 1;")
    with pytest.raises(CQSyntaxError, match="comment that begins here is never closed"):
        parse(item.text)


@settings(derandomize=True, deadline=None)
@given(some.text(alphabet=";'\"`\\-/*\n ()ab", max_size=40))
def test_items_are_slices_that_split_no_further(script):
    for item in split(script):
        assert script[item.offset : item.offset + len(item.text)] == item.text
        line = script.count("\n", 0, item.offset) + 1
        assert (item.line, item.column) == (line, item.offset - script.rfind("\n", 0, item.offset))
        assert texts(item.text) == [item.text]
