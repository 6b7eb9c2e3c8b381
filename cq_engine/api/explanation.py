"""What EXPLAIN knows of a continuous query, and how it is written: as text, as JSON, as a Mermaid diagram."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cq_engine.algebra.nodes import Node, Scan, children
from cq_engine.algebra.show import explain

__all__ = ["Explanation"]

_NUMBER = re.compile(r"\b(\w+?)_\d+\b")
"""What lowering appends to the names of columns."""


@dataclass(frozen=True)
class Explanation:
    """Facts of a query by name (texts, numbers, lists and further facts), the SQL of its delta, and its operators.

    `title` is the first line for a person; `verdict` begins the facts for a program.
    """

    query: str
    verdict: str
    mode: str
    title: str
    facts: Mapping[str, Any]
    sql_title: str = ""
    sql: str = ""
    plan: Node | None = None
    sources: tuple[str, ...] = ()

    def render(self, form: str) -> str:
        """As TEXT, JSON or MERMAID."""
        if form == "JSON":
            return self.json()
        return self.mermaid() if form == "MERMAID" else self.text()

    def text(self) -> str:
        """The facts as a tree, then the SQL."""
        tree = "\n".join([self.title, *_branches(self.facts)])
        return f"{tree}\n\n{self.sql_title}\n{self.sql}" if self.sql else tree

    def json(self) -> str:
        """One JSON object."""
        head = {"query": self.query, "verdict": self.verdict, "mode": self.mode}
        document = {**head, **_name_facts(self.facts), **({"sql": self.sql} if self.sql else {})}
        return json.dumps(document, ensure_ascii=False, indent=2)

    def mermaid(self) -> str:
        """A flowchart of the operators, from the tables to the result; of a query recomputed in full its tables."""
        lines = ["flowchart BT"]
        numbers: dict[int, str] = {}

        def draw(node: Node) -> str:
            if id(node) not in numbers:
                inputs = [draw(child) for child in children(node)]
                name = numbers[id(node)] = f"n{len(numbers)}"
                lines.append(f"  {name}{_box(node)}")
                lines.extend(f"  {each} --> {name}" for each in inputs)
            return numbers[id(node)]

        roots = [draw(self.plan)] if self.plan is not None else list(self.sources)
        lines.append(f'  result(["{_escape(f"{self.query}: {self.verdict}")}"])')
        return "\n".join([*lines, *(f"  {root} --> result" for root in roots)])


def _box(node: Node) -> str:
    if isinstance(node, Scan):
        return f'[("{_escape(node.table)}")]'
    line = _NUMBER.sub(r"\1", explain(node).partition("\n")[0])
    return f'["{_escape(line)}"]'


def _escape(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def _branches(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts as lines of a tree."""
    shown = [(name, value) for name, value in facts.items() if value not in ("", [], {}, None)]
    for number, (name, value) in enumerate(shown, 1):
        corner, indent = ("└─ ", "   ") if number == len(shown) else ("├─ ", "│  ")
        if isinstance(value, Mapping):
            yield f"{corner}{name}"
            yield from (indent + line for line in _branches(value))
        elif isinstance(value, (list, tuple)):
            yield f"{corner}{name}"
            yield from (
                f"{indent}{'└─' if n == len(value) else '├─'} {each}" for n, each in enumerate(value, 1)
            )
        else:
            yield f"{corner}{name}: {value}"


def _name_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with names as programs like them."""
    return {
        name.replace(" ", "_").replace("-", "_"): _name_facts(value) if isinstance(value, Mapping) else value
        for name, value in facts.items()
    }
