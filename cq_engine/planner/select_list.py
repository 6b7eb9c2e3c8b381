"""The outermost SELECT list: which items are delta functions, and the query without them.

Delta functions (slide 17: `cq_delta_marker`, `cq_old_value`, `cq_time`, `cq_commit_time`) are not part of the result,
so they are cut out of the text before anything else reads it. What is left keeps its words and its order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from cq_engine.core.errors import AnalysisError, Location, location_at
from cq_engine.planner.tokens import scan

__all__ = ["DELTA_FUNCTIONS", "Item", "SelectList", "safe_name", "select_list"]

DELTA_FUNCTIONS = {
    "delta_marker": "marker",
    "cq_delta_marker": "marker",
    "cq_old_value": "old",
    "cq_time": "time",
    "cq_commit_time": "commit_time",
    "cq_commit_version": "commit_version",
}
"""Function name → kind of output column."""
_END = {"FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "QUALIFY",
        "WINDOW", "LATERAL", "SORT", "CLUSTER", "DISTRIBUTE"}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """An item of the SELECT list. `kind` is result or the kind of a delta function."""

    text: str
    kind: str
    name: str = ""
    """The alias, or the delta function's name; empty for results without alias."""
    argument: str = ""
    """What stands inside cq_old_value(...)."""
    start: int = 0


@dataclass(frozen=True)
class SelectList:
    """`items` in order (none where the query has no delta function); `stripped` is the query without them."""

    items: tuple[Item, ...]
    stripped: str


def safe_name(name: str) -> str:
    """A column name without the characters that Delta Lake forbids in names.

    >>> safe_name("sum(amt)"), safe_name("Total")
    ('sum_amt', 'Total')
    """
    if not re.search(r"[ ,;{}()\n\t=]", name):
        return name
    return re.sub(r"\W+", "_", name).strip("_").lower() or "c"


def select_list(text: str) -> SelectList:
    """Reads the outermost SELECT list of `text`.

    Raises AnalysisError for a delta function anywhere else, or inside an expression, and for a query of nothing but
    delta functions.
    """
    tokens = scan(text)
    calls = [i for i, t in enumerate(tokens) if _is_call(tokens, i)]
    if not calls:
        return SelectList((), text)
    first, last = _bounds(tokens)
    outside = [i for i in calls if not first <= i < last]
    items = _items(text, tokens, first, last)
    if outside:
        raise _misplaced_error(text, tokens[outside[0]])
    kept = [item for item in items if item.kind == "result"]
    if not kept:
        raise AnalysisError(
            "the query selects nothing but delta functions",
            detail="delta functions describe a change of a result row; here a result row has no columns",
            hint="select at least one column of the result",
        )
    return SelectList(tuple(items), _blank(text, tokens, last, items))


def _blank(text: str, tokens: Sequence[Token], last: int, items: Sequence[Item]) -> str:
    """The text with spaces in the place of delta functions and of their commas: all other offsets stay as they are."""
    shown = list(text)
    end = tokens[last - 1].end + 1
    starts = [item.start for item in items] + [end]
    done = False
    for item, following in zip(items, starts[1:]):
        if item.kind == "result":
            done = True
            continue
        # The comma before the item goes, or the one behind it where no result column stands before.
        low = text.rindex(",", 0, item.start) if done else item.start
        high = item.start + len(item.text) if done else following
        for i in range(low, high):
            if shown[i] != "\n":
                shown[i] = " "
    return "".join(shown)


def _is_call(tokens: Sequence[Token], i: int) -> bool:
    return (
        tokens[i].token_type != TokenType.STRING
        and tokens[i].text.lower() in DELTA_FUNCTIONS
        and i + 1 < len(tokens)
        and tokens[i + 1].token_type == TokenType.L_PAREN
    )


def _bounds(tokens: Sequence[Token]) -> tuple[int, int]:
    """The first token of the outermost SELECT list and the one behind its last."""
    depth, first = 0, None
    for i, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif depth == 0 and token.token_type == TokenType.SELECT and first is None:
            first = i + 1
            while first < len(tokens) and tokens[first].text.upper() in ("ALL", "DISTINCT"):
                first += 1
        elif (
            depth == 0
            and first is not None
            and token.text.upper() in _END
            and token.token_type != TokenType.IDENTIFIER
        ):
            if i > 0 and tokens[i - 1].token_type == TokenType.ALIAS:
                continue
            return first, i
    return (first if first is not None else len(tokens)), len(tokens)


def _items(text: str, tokens: Sequence[Token], first: int, last: int) -> list[Item]:
    found, depth, start = [], 0, first
    for i in range(first, last + 1):
        closing = i == last
        if not closing:
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[i].token_type, 0)
        if closing or (depth == 0 and tokens[i].token_type == TokenType.COMMA):
            if i > start:
                found.append(_item(text, tokens, start, i))
            start = i + 1
    return found


def _item(text: str, tokens: Sequence[Token], start: int, end: int) -> Item:
    shown = text[tokens[start].start : tokens[end - 1].end + 1]
    inner = [i for i in range(start, end) if _is_call(tokens, i)]
    if not inner:
        alias = tokens[end - 1].text if end - start >= 2 and _has_alias(tokens, end) else ""
        return Item(shown, "result", alias, start=tokens[start].start)
    close = _closing(tokens, start + 1, end)
    rest = list(tokens[close + 1 : end])
    alias = ""
    if rest and rest[0].token_type == TokenType.ALIAS:
        rest = rest[1:]
    if len(rest) == 1:
        alias = rest[0].text
    if inner != [start] or len(rest) > 1:
        raise AnalysisError(
            f"{tokens[inner[0]].text.lower()}() must be a column of its own",
            detail="a delta function describes the change, not the row, and no expression can be built on it",
            hint=f"write {tokens[inner[0]].text.lower()}(...) AS name as an item of the outermost SELECT list",
            location=location_at(text, tokens[inner[0]].start),
        )
    name = tokens[start].text.lower()
    argument = text[tokens[start + 2].start : tokens[close - 1].end + 1] if close > start + 2 else ""
    kind = DELTA_FUNCTIONS[name]
    if (kind == "old") != bool(argument):
        need = "one argument" if kind == "old" else "no argument"
        raise AnalysisError(
            f"{name} takes {need}", location=location_at(text, tokens[start].start),
            hint="write cq_old_value(result_column)" if kind == "old" else f"write {name}()",
        )  # fmt: skip
    return Item(shown, kind, alias or ("old_value" if kind == "old" else name), argument, tokens[start].start)


def _has_alias(tokens: Sequence[Token], end: int) -> bool:
    before = tokens[end - 2].token_type
    if before == TokenType.ALIAS:
        return True
    plain = tokens[end - 1].token_type in (TokenType.VAR, TokenType.IDENTIFIER)
    return plain and before in (
        TokenType.R_PAREN,
        TokenType.VAR,
        TokenType.IDENTIFIER,
        TokenType.NUMBER,
        TokenType.STRING,
        TokenType.END,
    )


def _closing(tokens: Sequence[Token], opening: int, end: int) -> int:
    depth = 0
    for i in range(opening, end):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[i].token_type, 0)
        if depth == 0:
            return i
    return end - 1


def _misplaced_error(text: str, token: Token) -> AnalysisError:
    location: Location = location_at(text, token.start)
    return AnalysisError(
        f"{token.text.lower()}() stands outside the outermost SELECT list",
        detail="delta functions describe a change of the whole query's result",
        hint="move it to the SELECT list of the outermost query",
        location=location,
    )
