"""Which relations a text names, where, at which version; and the text with other names in their place.

sqlglot finds the references, the text itself is kept: what the user wrote is what Spark parses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from cq_engine.core.errors import AnalysisError, CQSyntaxError, location_at
from cq_engine.planner.tokens import scan
from cq_engine.spark.sql import quote

__all__ = ["AsOf", "Changes", "Reference", "find_references", "parse_query", "query_tree", "substitute"]


@dataclass(frozen=True)
class AsOf:
    """VERSION AS OF n (`kind` VERSION) or TIMESTAMP AS OF expression (`kind` TIMESTAMP), the value as text."""

    kind: str
    value: str


@dataclass(frozen=True)
class Changes:
    """CHANGES FROM VERSION low [TO VERSION high], both inclusive; high None: the newest."""

    low: int
    high: int | None


@dataclass(frozen=True)
class Reference:
    """`text[start:end]` names the relation `name`, together with its clause."""

    start: int
    end: int
    name: str
    clause: AsOf | Changes | None = None
    aliased: bool = False


def find_references(text: str) -> list[Reference]:
    """Every reference of a query to a relation that is not one of its CTEs, in text order.

    Raises:
        CQSyntaxError: the text does not parse.
        AnalysisError: a name has more than one part.
    """
    return parse_query(text)[1]


def parse_query(text: str) -> tuple[exp.Expr, list[Reference]]:
    """The tree of `query_tree` and what `find_references` finds in it. Raises CQSyntaxError, AnalysisError."""
    tree, clauses = _read(text)
    found = []
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or _is_cte(table):
            continue
        start, end = table.this.meta["start"], table.this.meta["end"] + 1
        if table.args.get("db") is not None:
            raise AnalysisError(
                f"relation names have one part: {table.sql(dialect='spark')}",
                hint=f"write {table.name}",
                location=location_at(text, start),
            )
        name, clause, end = next(
            ((c.name, c.clause, c.end) for c in clauses if c.start == start), (table.name, None, end)
        )
        # an alias would have to follow TABLESAMPLE, so a sampled table goes without
        aliased = bool(table.alias) or table.args.get("sample") is not None
        found.append(Reference(start, end, name, clause, aliased))
    return tree, sorted(found, key=lambda r: r.start)


def query_tree(text: str) -> exp.Expr:
    """The query as a tree, with plain names in place of versioned ones. Raises CQSyntaxError."""
    return _read(text)[0]


def _read(text: str) -> tuple[exp.Expr, list[Reference]]:
    from cq_engine.algebra.dialect import parse_expression  # INSERT … VALUES does without

    clauses = _find_clauses(text)
    try:
        return parse_expression(_blank(text, clauses)), clauses
    except SqlglotError as error:
        raise _syntax_error(text, error) from error


def substitute(
    text: str, references: Sequence[Reference], name: Callable[[Reference], str | None]
) -> tuple[str, dict[int, int]]:
    """The text with the names that `name` gives (None: leave it), and where its parts stood before.

    A reference without alias gets its own name as alias, so that `t.c` still means what it did.

    Returns:
        The new text, and offsets in it → offsets in `text`, one pair for each piece.
    """
    pieces: list[str] = []
    positions: dict[int, int] = {0: 0}
    done = length = 0
    for reference in sorted(references, key=lambda r: r.start):
        new = name(reference)
        if new is None:
            continue
        kept = text[done : reference.start]
        replacement = new if reference.aliased else f"{new} AS {quote(reference.name)}"
        pieces += [kept, replacement]
        positions[length + len(kept)] = reference.start
        length += len(kept) + len(replacement)
        done = reference.end
        positions[length] = done
    pieces.append(text[done:])
    return "".join(pieces), positions


def _syntax_error(text: str, error: SqlglotError) -> CQSyntaxError:
    details = getattr(error, "errors", None) or [{}]
    first = details[0]
    location = None
    if first.get("line") and first.get("col"):
        lines = text.splitlines(keepends=True)
        offset = sum(len(line) for line in lines[: first["line"] - 1]) + first["col"] - 1
        location = location_at(text, offset)
    message = first.get("description") or str(error).splitlines()[0]
    return CQSyntaxError(f"the query does not parse: {message}", location=location)


def _is_cte(table: exp.Table) -> bool:
    """True where a WITH in scope defines the name."""
    name = table.name.lower()
    child: object = table
    inside: exp.CTE | None = None
    node = table.parent
    while node is not None:
        if isinstance(node, exp.CTE):
            inside = node
        clause = node.args.get("with_") or node.args.get("with")
        if isinstance(clause, exp.With):
            for cte in clause.expressions:
                if child is clause and inside is not None and cte is inside:
                    if clause.args.get("recursive") and inside.alias.lower() == name:
                        return True
                    break
                if cte.alias.lower() == name:
                    return True
        child, node = node, node.parent
    return False


# ---------------------------------------------------------------- the clauses that sqlglot does not know


def _find_clauses(text: str) -> list[Reference]:
    tokens = scan(text)
    found: list[Reference] = []
    for at in range(len(tokens)):
        reference = _as_of(text, tokens, at) or _changes(text, tokens, at) or _table_changes(text, tokens, at)
        if reference is not None:
            found.append(reference)
    return found


def _blank(text: str, clauses: Sequence[Reference]) -> str:
    """The text with each clause as a plain name and blanks, all offsets unchanged."""
    for clause in clauses:
        shown = text[clause.start : clause.end]
        name = "_" * max(1, min(len(shown), 8))
        text = text[: clause.start] + name.ljust(len(shown)) + text[clause.end :]
    return text


def _words(tokens: Sequence[Token], at: int, *words: str) -> bool:
    return [t.text.upper() for t in tokens[at : at + len(words)]] == list(words)


def _names_relation(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and (
        tokens[at].token_type in (TokenType.VAR, TokenType.IDENTIFIER) or tokens[at].text.isidentifier()
    )


def _as_of(text: str, tokens: Sequence[Token], at: int) -> Reference | None:
    if not _names_relation(tokens, at):
        return None
    after = at + 1 + (1 if _words(tokens, at + 1, "FOR") else 0)
    if not (_words(tokens, after + 1, "AS", "OF") and after < len(tokens)):
        return None
    kind = {
        "VERSION": "VERSION",
        "SYSTEM_VERSION": "VERSION",
        "TIMESTAMP": "TIMESTAMP",
        "SYSTEM_TIME": "TIMESTAMP",
    }.get(tokens[after].text.upper())
    if kind is None or after + 3 >= len(tokens):
        return None
    last = _value_end(tokens, after + 3)
    value = text[tokens[after + 3].start : tokens[last].end + 1]
    return Reference(tokens[at].start, tokens[last].end + 1, tokens[at].text, AsOf(kind, value))


def _value_end(tokens: Sequence[Token], at: int) -> int:
    """The last token of the literal, call or parenthesised expression that starts at `at`."""
    if _words(tokens, at, "(") or _words(tokens, at + 1, "("):
        depth = 0
        for n in range(at, len(tokens)):
            depth += (
                {"(": 1, ")": -1}.get(tokens[n].text, 0) if tokens[n].token_type != TokenType.STRING else 0
            )
            if depth == 0 and tokens[n].text == ")":
                return n
    if (
        at + 1 < len(tokens)
        and tokens[at + 1].token_type == TokenType.STRING
        and tokens[at].token_type != TokenType.STRING
    ):
        return at + 1
    return at


def _changes(text: str, tokens: Sequence[Token], at: int) -> Reference | None:
    if not _names_relation(tokens, at) or not _words(tokens, at + 1, "CHANGES", "FROM", "VERSION"):
        return None
    low = _number(text, tokens, at + 4)
    last, high = at + 4, None
    if _words(tokens, at + 5, "TO", "VERSION"):
        last, high = at + 7, _number(text, tokens, at + 7)
    return Reference(tokens[at].start, tokens[last].end + 1, tokens[at].text, Changes(low, high))


def _table_changes(text: str, tokens: Sequence[Token], at: int) -> Reference | None:
    if not _words(tokens, at, "TABLE_CHANGES", "(") or at + 5 >= len(tokens):
        return None
    name = tokens[at + 2].text
    low = _number(text, tokens, at + 4)
    last, high = at + 5, None
    if _words(tokens, last, ","):
        high, last = _number(text, tokens, at + 6), at + 7
    if not _words(tokens, last, ")"):
        raise CQSyntaxError(
            "table_changes takes a name and two versions",
            hint=f"write table_changes('{name}', 1, 5)",
            location=location_at(text, tokens[at].start),
        )
    return Reference(tokens[at].start, tokens[last].end + 1, name, Changes(low, high))


def _number(text: str, tokens: Sequence[Token], at: int) -> int:
    if at < len(tokens) and tokens[at].text.isdigit():
        return int(tokens[at].text)
    where = tokens[at].start if at < len(tokens) else len(text)
    raise CQSyntaxError(
        "a commit version must stand here",
        hint="versions are whole numbers",
        location=location_at(text, where),
    )
