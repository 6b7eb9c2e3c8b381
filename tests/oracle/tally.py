"""What a run of the property test has covered: counted in the queries' text and in the recorded histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp

from tests.oracle.recorded import Recorded

__all__ = ["Tally", "shapes_of"]


@dataclass
class Tally:
    """`pairs` are query × history pairs that were checked, in all modes; `shapes` counts queries that have a shape."""

    histories: int = 0
    pairs: int = 0
    refreshes: int = 0
    repairs: int = 0
    """Groups whose stored MIN, MAX or FLOAT sum was computed from the group's rows again."""
    commits: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)

    def add(self, recorded: Recorded) -> None:
        self.histories += 1
        tried = 1 + len(recorded.history.transactions)
        self.commits["of no net effect"] += tried - recorded.newest
        for version in range(2, recorded.newest + 1):
            self.commits.update(_kinds(recorded, version))

    def add_query(self, text: str, verdict: str) -> None:
        self.pairs += 1
        self.verdicts[verdict] += 1
        self.shapes.update(shapes_of(text))

    def __str__(self) -> str:
        lines = [
            f"{self.histories} histories, {self.pairs} query × history pairs",
            f"{self.refreshes} refreshes, {self.repairs} groups repaired",
        ]
        for name in ("commits", "verdicts", "shapes"):
            counts = getattr(self, name)
            if counts:
                lines.append(f"{name}: " + ", ".join(f"{k} {n}" for k, n in sorted(counts.items())))
        return "\n".join(lines)


def _kinds(recorded: Recorded, version: int) -> set[str]:
    """What a commit did."""
    by_table = {
        name: [(row, kind) for row, _, kind, v in log if v == version]
        for name, log in recorded.changes.items()
    }
    changes = [change for log in by_table.values() for change in log]
    kinds = {kind for _, kind in changes}
    found = {"in all"}
    if kinds == {"insert"}:
        found.add("of inserts only")
    if kinds == {"delete"}:
        found.add("of deletes only")
    if "update_preimage" in kinds:
        found.add("with updates")
    if {"insert", "delete"} <= kinds:
        found.add("that delete and insert")
    if sum(map(bool, by_table.values())) > 1:
        found.add("to several tables")
    if any(None in row for row, _ in changes):
        found.add("with NULLs")
    return found


def _is_subquery(node: exp.Expr) -> bool:
    return isinstance(node, exp.Subquery) and not isinstance(node.parent, (exp.From, exp.Join, exp.Lateral))


_TESTS: dict[str, Callable[[exp.Expr], bool]] = {
    "inner join": lambda n: isinstance(n, exp.Join) and not n.side and n.kind not in ("SEMI", "ANTI"),
    "LEFT JOIN": lambda n: isinstance(n, exp.Join) and n.side == "LEFT" and n.kind not in ("SEMI", "ANTI"),
    "RIGHT JOIN": lambda n: isinstance(n, exp.Join) and n.side == "RIGHT",
    "FULL JOIN": lambda n: isinstance(n, exp.Join) and n.side == "FULL",
    "SEMI JOIN": lambda n: isinstance(n, exp.Join) and n.kind == "SEMI",
    "ANTI JOIN": lambda n: isinstance(n, exp.Join) and n.kind == "ANTI",
    "LATERAL": lambda n: isinstance(n, exp.Lateral),
    "EXISTS": lambda n: isinstance(n, exp.Exists) and not isinstance(n.parent, exp.Not),
    "NOT EXISTS": lambda n: isinstance(n, exp.Exists) and isinstance(n.parent, exp.Not),
    "IN": lambda n: isinstance(n, exp.In) and bool(n.args.get("query")) and not isinstance(n.parent, exp.Not),
    "NOT IN": lambda n: isinstance(n, exp.In) and bool(n.args.get("query")) and isinstance(n.parent, exp.Not),
    "scalar subquery": lambda n: _is_subquery(n) and not isinstance(n.parent, (exp.In, exp.Exists)),
    "subquery under OR, CASE": lambda n: (
        isinstance(n, (exp.Or, exp.Case)) and any(q.find_ancestor(exp.Or, exp.Case) for q in n.find_all(exp.Select))
    ),
    "subquery in HAVING": lambda n: isinstance(n, exp.Having) and n.find(exp.Select) is not None,
    "GROUP BY": lambda n: isinstance(n, exp.Group) and bool(n.expressions),
    "ROLLUP": lambda n: isinstance(n, exp.Rollup),
    "CUBE": lambda n: isinstance(n, exp.Cube),
    "GROUPING SETS": lambda n: isinstance(n, exp.GroupingSets),
    "HAVING": lambda n: isinstance(n, exp.Having),
    "FILTER": lambda n: isinstance(n, exp.Filter),
    "aggregate of DISTINCT": lambda n: isinstance(n, exp.Distinct) and isinstance(n.parent, exp.AggFunc),
    "scalar aggregate": lambda n: (
        isinstance(n, exp.Select)
        and not n.args.get("group")
        and any(isinstance(e.unalias(), exp.AggFunc) for e in n.expressions)
    ),
    "SELECT DISTINCT": lambda n: isinstance(n, exp.Distinct) and isinstance(n.parent, exp.Select),
    "UNION ALL": lambda n: isinstance(n, exp.Union) and not n.args.get("distinct"),
    "UNION": lambda n: isinstance(n, exp.Union) and bool(n.args.get("distinct")),
    "EXCEPT": lambda n: isinstance(n, exp.Except) and bool(n.args.get("distinct")),
    "EXCEPT ALL": lambda n: isinstance(n, exp.Except) and not n.args.get("distinct"),
    "INTERSECT": lambda n: isinstance(n, exp.Intersect) and bool(n.args.get("distinct")),
    "INTERSECT ALL": lambda n: isinstance(n, exp.Intersect) and not n.args.get("distinct"),
    "window": lambda n: isinstance(n, exp.Window),
    "window with a frame": lambda n: isinstance(n, exp.Window) and n.args.get("spec") is not None,
    "window without PARTITION BY": lambda n: isinstance(n, exp.Window) and not n.args.get("partition_by"),
    "QUALIFY": lambda n: isinstance(n, exp.Qualify),
    "LIMIT": lambda n: isinstance(n, exp.Limit),
    "OFFSET": lambda n: isinstance(n, exp.Offset),
    "VALUES": lambda n: isinstance(n, exp.Values),
}  # fmt: skip


def shapes_of(text: str) -> set[str]:
    """The shapes in a query; how deep its SELECTs are nested; and "CTE used twice"."""
    tree = sqlglot.parse_one(text, dialect="spark")
    nodes = list(tree.walk())
    found = {name for name, test in _TESTS.items() if any(map(test, nodes))}
    uses = Counter(n.name for n in nodes if isinstance(n, exp.Table))
    names = {n.alias for n in nodes if isinstance(n, exp.CTE)}
    found |= {"CTE used twice"} if any(uses[name] > 1 for name in names) else set()
    depth = _depth(tree)
    return found | {f"{min(depth, 5)}{'+' if depth >= 5 else ''} levels"}


def _depth(tree: exp.Expr) -> int:
    """How many SELECTs stand inside each other at most; a CTE stands at the level of its query."""

    def level(node: exp.Expr) -> int:
        count, at = 0, node.parent
        while at is not None:
            count += isinstance(at, exp.Select)
            at = at.parent
        return count + 1

    return max(level(each) for each in tree.find_all(exp.Select))
