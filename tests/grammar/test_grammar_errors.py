"""The table of known mistakes: every row is reached by its own examples, and its text is a snapshot.

Regenerate the snapshot with CQ_UPDATE_SNAPSHOTS=1 pytest tests/grammar.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cq_engine.core.errors import CQSyntaxError
from cq_engine.grammar import parse, split
from cq_engine.grammar.message import Message
from cq_engine.grammar.messages import BY_KEY, MESSAGES

SNAPSHOT = Path(__file__).parent / "errors.snapshot.txt"
EXAMPLES = [(message, example) for message in MESSAGES for example in message.examples]


def error_of(text: str) -> CQSyntaxError:
    with pytest.raises(CQSyntaxError) as caught:
        parse(text)
    return caught.value


def is_text_of(template: str, text: str) -> bool:
    """Whether `text` is `template` with its fields filled in."""
    pattern = re.escape(template.replace("{{", "<<").replace("}}", ">>"))
    pattern = re.sub(r"\\\{\w+\\\}", ".+", pattern).replace("<<", r"\{").replace(">>", r"\}")
    return re.fullmatch(pattern, text, re.DOTALL) is not None


@pytest.mark.parametrize(("message", "example"), EXAMPLES, ids=[f"{m.key}: {e}" for m, e in EXAMPLES])
def test_an_example_is_explained_at_its_place(message: Message, example: str):
    found = error_of(example.replace("‸", ""))
    early = "the statement ends too early, after {last}"
    assert is_text_of(message.message, found.message) or (
        example[-1] == "‸" and is_text_of(early, found.message)
    )
    assert is_text_of(message.hint, found.hint)
    assert found.location is not None
    assert found.location.column == example.index("‸") + 1


def test_every_row_has_examples_and_a_key_of_its_own():
    assert len(BY_KEY) == len(MESSAGES) >= 20
    for message in MESSAGES:
        assert message.examples
        assert all(example.count("‸") == 1 for example in message.examples)
        assert message.message[-1] not in ".!"


def test_snapshot_of_all_errors():
    rendered = [error_of(example.replace("‸", "")).render() for _, example in EXAMPLES]
    text = "\n\n".join(line.rstrip() for line in rendered) + "\n"
    if os.environ.get("CQ_UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8")


def test_place_in_a_file():
    script = "SHOW TABLES;\n\n/* two\nlines */ CREATE CONTINUOUS QUERY q\n  COMPUTE EVERY DAY\n  SELECT 1;\n"
    item = split(script, "rules.cq")[1]
    with pytest.raises(CQSyntaxError) as caught:
        parse(item.text, item.source, item.line, item.column)
    location = caught.value.location
    assert location is not None
    assert (location.source, location.line, location.column) == ("rules.cq", 5, 17)
    assert location.text == "  COMPUTE EVERY DAY"


def test_caret_stands_under_its_character_where_the_line_begins_before_the_statement():
    script = "SHOW TABLES; DROP TABEL t"
    item = split(script)[1]
    with pytest.raises(CQSyntaxError) as caught:
        parse(item.text, item.source, item.line, item.column)
    location = caught.value.location
    assert location is not None
    line, caret = location.caret().split("\n")
    assert line[caret.index("^") :].startswith("TABEL")


def test_errors_inside_explain_are_placed_in_the_whole_text():
    found = error_of("EXPLAIN\n  DROP TABEL t")
    assert found.location is not None
    assert (found.location.line, found.location.column) == (2, 8)


def test_crlf_lines_are_shown_without_their_end():
    found = error_of("DROP\r\nTABEL t\r\n")
    assert found.location is not None
    assert (found.location.line, found.location.text) == (2, "TABEL t")
