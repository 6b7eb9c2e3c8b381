"""Text to statement: `parse`, and the rules of cq.lark that are about nothing of which build_*.py are."""

from __future__ import annotations

import re
from typing import Any

from lark import Token, v_args
from lark.exceptions import UnexpectedInput, VisitError

from cq_engine.grammar import diagnostics, statements
from cq_engine.grammar.blocks import hide
from cq_engine.grammar.build_destination import DestinationRules
from cq_engine.grammar.build_query import QueryRules
from cq_engine.grammar.build_source import SourceRules
from cq_engine.grammar.build_table import TableRules
from cq_engine.grammar.clauses import Options
from cq_engine.grammar.names import string_value
from cq_engine.grammar.nesting import too_deep
from cq_engine.grammar.parser import parser
from cq_engine.grammar.rules import Clause
from cq_engine.grammar.scan import scan
from cq_engine.grammar.script import split
from cq_engine.grammar.source import SourceText

__all__ = ["parse", "parse_script"]

_EXPLAIN_FORMATS = ("TEXT", "JSON", "MERMAID")
_DML_VERBS = ("INSERT", "UPDATE", "DELETE", "MERGE")
_UPSERT = re.compile(
    r"(?<![\w.])(?:ON\s+CONFLICT(?=[\s(].*?\bDO\s+(?:NOTHING|UPDATE)(?!\w))|ON\s+DUPLICATE\s+KEY(?!\w))",
    re.I | re.S,
)
_INSERT = re.compile(r"\s*(INSERT)\s+(?:INTO|OVERWRITE)(?!\w)", re.I)
"""What is not to wait until a new process has built the parser."""
_TOP_LEVEL = re.compile(r"[()]|(?<![\w.])(?:SELECT|VALUES|FROM|TABLE|INSERT|UPDATE|DELETE|MERGE)(?!\w)", re.I)


def parse(text: str, source: str = "<input>", line: int = 1, column: int = 1) -> statements.Statement:
    """The one statement in `text`, with or without a semicolon at its end.

    `source`, `line` and `column` say where the text begins, for errors; a `ScriptItem` has them. Raises
    CQSyntaxError, always with a location and a hint, and nothing else.
    """
    return _parse(SourceText(text, source, line, column))


def parse_script(source: SourceText) -> list[tuple[int, statements.Dml]]:
    """The statements in the script of a trigger, each with its offset in the text. Raises CQSyntaxError, as `parse` does."""
    found = []
    for item in split(source.text):
        part = source.part(item.offset, item.offset + len(item.text))
        statement = _parse(part)
        if not isinstance(statement, statements.Dml):
            raise diagnostics.error("script_statement", part, 0, found=f"'{item.text.split()[0]}'")
        found.append((item.offset, statement))
    return found


def _parse(source: SourceText) -> statements.Statement:
    found = scan(source.text)
    if found.unclosed is not None:
        raise diagnostics.error(found.unclosed.key, source, found.unclosed.offset)
    code = found.code
    if found.separators:
        code = code[: found.separators[0]]
        rest = found.code[found.separators[0] :]
        if rest.strip("; \t\r\n"):
            offset = len(found.code) - len(rest.lstrip("; \t\r\n"))
            raise diagnostics.error("several_statements", source, offset)
    code = code.rstrip()
    if not code:
        raise diagnostics.error("empty_statement", source, 0)
    if found.unbalanced is not None:
        raise diagnostics.error(found.unbalanced.key, source, found.unbalanced.offset)
    deep = too_deep(found.skeleton[: len(code)])
    if deep is not None:
        raise diagnostics.error("too_deep", source, deep)
    plain = _INSERT.match(code)
    if plain is not None:
        return _Builder(source, found.skeleton).insert(plain.start(1), len(code))
    code = hide(code, found.skeleton[: len(code)], next(iter(found.blocks), None))
    try:
        tree = parser().parse(code)
    except UnexpectedInput:
        raise diagnostics.explain(source, code) from None
    try:
        statement: statements.Statement = _Builder(source, found.skeleton).transform(tree)
    except VisitError as wrapped:
        # lark wraps what a rule raises.
        cause: BaseException = wrapped
        while isinstance(cause, VisitError):
            cause = cause.orig_exc
        raise cause from None
    if isinstance(statement, statements.CreateDestination) and statement.script is not None:
        start = statement.script.offset
        parse_script(source.part(start, start + len(statement.script.text)))
    return statement


@v_args(inline=True)
class _Builder(QueryRules, DestinationRules, SourceRules, TableRules):
    """The tree of one statement, bottom up."""

    def __init__(self, source: SourceText, skeleton: str) -> None:
        super().__init__(source)
        self.skeleton = skeleton

    # ------------------------------------------------------------ functions

    def create_function(
        self, or_replace: bool | None, if_not_exists: bool | None, name: Token, rest: Token
    ) -> statements.CreateFunction:
        if or_replace and if_not_exists:
            self.fail("replace_and_exists", name.start_pos)
        return statements.CreateFunction(str(name), self.slice(rest), bool(or_replace), bool(if_not_exists))

    def drop_function(self, if_exists: bool | None, name: Token) -> statements.DropFunction:
        return statements.DropFunction(str(name), bool(if_exists))

    # ------------------------------------------------------------ data and transactions

    def dml(self, verb: Token, rest: Token) -> statements.Dml:
        return self._dml(verb.upper(), verb.start_pos or 0, rest.end_pos)

    def insert(self, start: int, end: int) -> statements.Dml:
        return self._dml("INSERT", start, end)

    def _dml(self, verb: str, start: int, end: int | None) -> statements.Dml:
        upsert = _UPSERT.search(self.skeleton, start, end or len(self.skeleton)) if verb == "INSERT" else None
        if upsert is not None:
            self.fail("on_conflict", upsert.start(), words=" ".join(upsert.group().upper().split()))
        return statements.Dml(verb, self.source.text[start:end])

    def plain_query(self, text: Token) -> statements.Statement:
        written = self.slice(text)
        verb = self._verb_after_with(text) if text[:4].upper() == "WITH" else None
        return self._dml(verb, text.start_pos or 0, text.end_pos) if verb else statements.Query(written)

    def _verb_after_with(self, text: Token) -> str | None:
        """INSERT, UPDATE, DELETE or MERGE if that is what the common table expressions serve, else None."""
        depth = 0
        closed = False
        for word in _TOP_LEVEL.finditer(self.skeleton, text.start_pos or 0, text.end_pos or 0):
            if word.group() == "(":
                depth += 1
            elif word.group() == ")":
                depth -= 1
                closed = True
            elif depth == 0 and closed:
                found = word.group().upper()
                return found if found in _DML_VERBS else None
        return None

    @v_args(meta=True, inline=True)
    def copy_format(self, meta: Any, name: Token) -> tuple[str, str, int]:
        return "FORMAT", name.lower(), meta.start_pos

    def copy_list(self, *options: Clause | None) -> Options:
        return self.option_list(*options)

    @v_args(meta=True, inline=True)
    def copy_option(self, meta: Any, name: str, value: str | None) -> Clause:
        return name, "true" if value is None else value, meta.start_pos

    @v_args(meta=True, inline=True)
    def copy_options(self, meta: Any, options: Options) -> tuple[str, Options, int]:
        return "OPTIONS", options, meta.start_pos

    def copy_clauses(self, *clauses: tuple[str, Any, int]) -> dict[str, Any]:
        return self.once(clauses)

    def copy_into(
        self, table: Token, columns: tuple[str, ...] | None, path: Token, clauses: dict[str, Any]
    ) -> statements.CopyInto:
        options = dict(clauses.get("OPTIONS", ()))
        inside = options.pop("format", None)
        if inside is not None and "FORMAT" in clauses:
            self.fail("duplicate_clause", path.end_pos, clause="FORMAT")
        kind = clauses.get("FORMAT") if inside is None else inside.lower()
        return statements.CopyInto(str(table), str(path), kind, columns or (), tuple(options.items()))

    def begin(self) -> statements.Begin:
        return statements.Begin()

    def commit(self) -> statements.Commit:
        return statements.Commit()

    def rollback(self) -> statements.Rollback:
        return statements.Rollback()

    # ------------------------------------------------------------ looking and setting

    def show_all(self, *words: Token) -> statements.Show:
        return statements.Show(" ".join(words).upper())

    def show_refreshes(self, name: Token | None) -> statements.Show:
        return statements.Show("REFRESHES", None if name is None else str(name))

    def described_name(self, word: Token) -> Token:
        return word

    def describe(self, kind: str | None, name: Token) -> statements.Describe:
        return statements.Describe(str(name), kind)

    @v_args(meta=True, inline=True)
    def analyze(self, meta: Any) -> Clause:
        return "ANALYZE", True, meta.start_pos

    def explain_format(self, name: Token) -> Clause:
        if name.upper() not in _EXPLAIN_FORMATS:
            self.fail("explain_format", name.start_pos, found=f"'{name}'")
        return "FORMAT", name.upper(), name.start_pos or 0

    def explain_options(self, *options: Clause) -> tuple[Clause, ...]:
        return options

    def explained_query(
        self, analyze: Clause | None, options: tuple[Clause, ...] | None, name: Token
    ) -> statements.Explain:
        given = self.once([*((analyze,) if analyze else ()), *(options or ())])
        return statements.Explain(
            name=str(name), analyze="ANALYZE" in given, format=given.get("FORMAT", _EXPLAIN_FORMATS[0])
        )

    def explain(self, what: statements.Explain | Token) -> statements.Explain:
        if isinstance(what, statements.Explain):
            return what
        if what.upper().split(maxsplit=1)[0] == "ANALYZE":
            self.fail("analyze_what", what.start_pos)
        # Parsed for its errors only: the engine reads the text again.
        _parse(self.source.part(what.start_pos or 0, what.end_pos))
        return statements.Explain(text=self.slice(what))

    def set_option(self, name: str, value: Token) -> statements.SetOption:
        text = str(value).strip()
        whole = scan(text)
        if text[0] in "'\"" and not whole.skeleton.strip():
            text = string_value(text)
        return statements.SetOption(name, text)
