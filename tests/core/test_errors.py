"""How an error is shown where its text is very long."""

from __future__ import annotations

from cq_engine.core.errors import CQSyntaxError, location_at


def test_long_lines_are_quoted_around_the_place() -> None:
    text = ", ".join(f"c{n}" for n in range(20_000))
    offset = text.index("c10000")
    rendered = CQSyntaxError("unexpected", location=location_at(text, offset)).render()
    first, line, caret = rendered.split("\n")
    assert first == f"<input>:1:{offset + 1}: error: unexpected"
    assert len(line) < 200
    assert line[caret.index("^") :].startswith("c10000,")
    start = CQSyntaxError("unexpected", location=location_at(text, 4)).render().split("\n")
    assert start[1][start[2].index("^") :].startswith("c1,")
    end = CQSyntaxError("unexpected", location=location_at(text, len(text) - 6)).render().split("\n")
    assert end[1][end[2].index("^") :] == "c19999"


def test_long_texts_are_cut() -> None:
    rendered = CQSyntaxError("x" * 2_000_000, detail="y" * 2_000_000).render()
    assert len(rendered) < 5000
    assert "… (2000000 characters)" in rendered
