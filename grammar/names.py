"""Names and literals as they are written, and as what they mean."""

from __future__ import annotations

import re

# Words that stand for themselves where a name may stand too.
_AMBIGUOUS = {
    "CALLBACK",
    "COMPUTE",
    "CONSTRAINT",
    "CONTINUOUS",
    "DESTINATION",
    "FOREIGN",
    "IF",
    "INTERVAL",
    "PRIMARY",
}
_AMBIGUOUS |= {"QUEUE", "TABLE", "TRIGGER", "WEBHOOK"}
# And those that nobody would read as a name.
_CONFUSING = {"AND", "AS", "CREATE", "DELETE", "FROM", "INSERT", "MERGE", "NOT", "NULL", "ON", "OR", "SELECT"}
_CONFUSING |= {"UPDATE", "VALUES", "WHERE", "WITH"}
RESERVED = frozenset(_AMBIGUOUS | _CONFUSING)
"""Words that `quote_name` puts into backquotes."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def unquote_name(text: str) -> str:
    """The name that `text` writes, with or without backquotes.

    >>> unquote_name("`a``b`"), unquote_name("acct")
    ('a`b', 'acct')
    """
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def quote_name(name: str) -> str:
    """`name` as text, in backquotes where it needs them.

    >>> quote_name("acct"), quote_name("order line"), quote_name("table")
    ('acct', '`order line`', '`table`')
    """
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in RESERVED:
        return name
    return "`" + name.replace("`", "``") + "`"


def string_value(literal: str) -> str:
    """The value of a Spark string literal: escapes, doubled quotes and r'raw' strings.

    >>> string_value("'it''s'"), string_value(r"'a\\tb'"), string_value(r"r'a\\tb'")
    ("it's", 'a\\tb', 'a\\\\tb')
    """
    if literal[0] in "rR":
        return literal[2:-1]
    quote = literal[0]
    parts = []
    body = literal[1:-1]
    done = 0
    for escape in _ESCAPE.finditer(body):
        parts += [body[done : escape.start()].replace(quote * 2, quote), _escaped(escape.group(1))]
        done = escape.end()
    parts.append(body[done:].replace(quote * 2, quote))
    value = "".join(parts)
    # Two \u escapes may make one character beyond the basic plane; a lone half of one is no character.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(code: str) -> str:
    if code[0] in "uU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else "\ufffd"
    if code.isdigit() and len(code) == 3:
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)


def string_literal(value: str) -> str:
    """`value` as a Spark string literal on one line.

    >>> string_literal("it's")
    "'it\\\\'s'"
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"
