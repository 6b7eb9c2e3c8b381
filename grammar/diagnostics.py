"""From a failed parse to an error that a person can act on.

The knowledge is data: messages.py has a row for every known mistake. Here the place of the failure is described in
one line that the rows' patterns are matched against, for `ALTER TABLE t ADD COLUMN b.c INT`

    ALTER TABLE name ADD COLUMN name ^ .

Keywords stand for themselves, `name`, `string`, `number` and `unit` for any; before `^` is what the parser took,
behind it what it could not take, where a word stands for itself.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from lark import Token
from lark.exceptions import UnexpectedInput

from cq_engine.core.errors import CQSyntaxError
from cq_engine.grammar.message import Message
from cq_engine.grammar.messages import BY_KEY, MESSAGES
from cq_engine.grammar.parser import keywords, parser
from cq_engine.grammar.source import SourceText

_CLASSES = {"NAME": "name", "STRING": "string", "INT": "number", "NUMBER": "number", "UNIT": "unit"}
_CLASSES |= {"SCRIPT": "script", "CONDITION": "condition"}
_END = "the end of the statement"
_SHOWN = {
    "NAME": "a name",
    "STRING": "a string",
    "INT": "a number",
    "NUMBER": "a number",
    "UNIT": "a unit such as DAYS",
    "QUERY": "a query (SELECT, WITH, VALUES or FROM)",
    "PAREN_QUERY": "",
    "FUNCTION_REST": "(parameters) RETURN expression",
    "EXPLAINED": "a statement",
    "SET_VALUE": "a value",
    "SCRIPT": "BEGIN statement; ... END",
    "CONDITION": "(condition)",
    "UPDATE_REST": "a table",
    "INSERT_REST": "INTO",
    "DELETE_REST": "FROM",
    "MERGE_REST": "INTO",
    "TRUNCATE_REST": "TABLE",
    "$END": _END,
}
_FOUND = re.compile(
    r"(?P<string>[rR]?'[^']*'|[rR]?\"[^\"]*\")|(?P<name>`(?:[^`]|``)*`)|(?P<number>[+-]?\d[\d.]*(?!\w))|(?P<word>\w+)"
)


@dataclass(frozen=True)
class _Failure:
    """Where the parser stopped."""

    context: str
    found: str
    last: str
    offset: int
    expected: frozenset[str]
    is_word: bool


def error(key: str, source: SourceText, offset: int, **fields: str) -> CQSyntaxError:
    """The error of the row `key`, at `offset` of `source`."""
    return _render(BY_KEY[key], source, offset, fields)


def explain(source: SourceText, code: str) -> CQSyntaxError:
    """The error for `code` (comments blanked), which the parser has refused."""
    failure = _failure(code)
    fields = {"found": failure.found, "last": failure.last}
    meant = _did_you_mean(failure) if failure.is_word else None
    if meant is not None:
        return error("misspelt", source, failure.offset, meant=meant, **fields)
    for message in MESSAGES:
        if message.fits(failure.context, failure.expected, failure.last):
            return _render(message, source, failure.offset, fields)
    return error("unexpected", source, failure.offset, expected=_expectations(failure), **fields)


def _render(message: Message, source: SourceText, offset: int, fields: dict[str, str]) -> CQSyntaxError:
    template = message.message
    if fields.get("found") == _END and "{found}" in template and fields.get("last"):
        # "AS is followed by the end of the statement" is no way to talk to a person.
        template = "the statement ends too early, after {last}"
    return CQSyntaxError(
        template.format(**fields),
        hint=message.hint.format(**fields),
        location=source.location(offset),
    )


def _failure(code: str) -> _Failure:
    """Parses `code` once more, step by step."""
    state = parser().parse_interactive(code)
    taken: list[Token] = []
    offset = len(code)
    try:
        taken.extend(state.iter_parse())
    except UnexpectedInput as stop:
        offset = _offset(stop, code, taken)
    # The lexer may have given a token that the parser then refused.
    taken = [token for token in taken if (token.end_pos or 0) <= offset]
    match = _FOUND.match(code, offset)
    kind = "end" if offset >= len(code) else (match.lastgroup or "") if match else code[offset]
    text = match.group() if match else code[offset : offset + 1]
    accepted: set[str] = state.accepts()  # type: ignore[no-untyped-call]
    last = str(taken[-1]) if taken else ""
    words = [_CLASSES.get(token.type, token.upper()) for token in taken]
    context = " ".join([*words, "^", text.upper() if kind == "word" else kind])
    shown = _END if kind == "end" else text if kind == "string" else f"'{text}'"
    return _Failure(context, shown, last, offset, frozenset(accepted), kind == "word")


def _offset(stop: UnexpectedInput, code: str, taken: list[Token]) -> int:
    """Where in `code` the parser stopped."""
    token = getattr(stop, "token", None)
    if token is not None and token.type == "$END":
        return len(code)
    at = stop.pos_in_stream
    if at is None:
        at = (taken[-1].end_pos or 0) if taken else 0
    while at < len(code) and code[at].isspace():
        at += 1
    return at


def _did_you_mean(failure: _Failure) -> str | None:
    """The keyword that the unexpected word was probably meant to be."""
    possible = sorted({word for terminal in failure.expected for word in keywords().get(terminal, ())})
    word = failure.context.rpartition(" ")[2]
    close = difflib.get_close_matches(word, possible, 1, 0.75)
    return close[0] if close and close[0] != word else None


def _expectations(failure: _Failure) -> str:
    """What could stand there instead, for a hint: `A, B or C`."""
    shown = set()
    for terminal in failure.expected:
        words = keywords().get(terminal, ())
        symbol = next((t.pattern.value for t in parser().terminals if t.name == terminal), terminal)
        shown.add(
            _SHOWN.get(terminal)
            or (words[0] if words else f"'{symbol}'" if terminal != "PAREN_QUERY" else "")
        )
    names = sorted(shown - {""}, key=lambda text: (text[0].islower(), text))
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} or {names[-1]}"
