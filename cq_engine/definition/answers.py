"""What Spark has said of a definition, kept with it: so another process compiles the query without asking Spark again.

An answer is found by its question, which names everything that it rests on but the session's settings: those of CREATE,
under which a definition is analysed each time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

import pyspark

from cq_engine.catalog.model import Table
from cq_engine.core.columns import Column

__all__ = ["Answers", "described"]


class Answers:
    """Answers by question, those that are `known` and those that are given in the meantime."""

    def __init__(self, known: Sequence[tuple[str, str]] = ()) -> None:
        self._known = dict(known)

    @property
    def given(self) -> tuple[tuple[str, str], ...]:
        """All of them, for the next process."""
        return tuple(self._known.items())

    def columns(self, question: str, ask: Callable[[], Sequence[Column]]) -> tuple[Column, ...]:
        """Columns with their types, in the answer to a question; `ask` asks Spark."""

        def text() -> str:
            return json.dumps([[c.name, c.type, c.nullable] for c in ask()])

        return tuple(
            Column(name, kind, nullable) for name, kind, nullable in json.loads(self._answer(question, text))
        )

    def type(self, question: str, ask: Callable[[], str | None]) -> str | None:
        """A type, or None, in the answer to a question; `ask` asks Spark."""
        found: str | None = json.loads(self._answer(question, lambda: json.dumps(ask())))
        return found

    def _answer(self, question: str, ask: Callable[[], str]) -> str:
        key = hashlib.sha256(f"{pyspark.__version__}\n{question}".encode()).hexdigest()[:32]
        if key not in self._known:
            self._known[key] = ask()
        return self._known[key]


def described(sources: Mapping[str, Table]) -> str:
    """The tables of a definition with their columns and types, as a question names them."""
    shown = {
        name: [(c.name, c.type) for c in table.storage.physical_columns] for name, table in sources.items()
    }
    return json.dumps(shown, sort_keys=True)
