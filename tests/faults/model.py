"""What a warehouse of the trials should be, and which steps lead it on."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from cq_engine.api.engine import Engine
from tests.faults.warehouse import Change, Delta, Row, Rows, Step, difference, history, replay, totals


@dataclass
class Model:
    """What is committed, kept outside of the warehouse."""

    commits: dict[int, dict[str, list[tuple[str, Row]]]] = field(default_factory=dict)
    """Version → base table → change rows."""
    rows: dict[str, Rows] = field(default_factory=lambda: {"account": {}, "entry": {}})
    deltas: list[Delta] = field(default_factory=list)
    """Of every version, whether it was refreshed or not."""
    served: set[int] = field(default_factory=set)
    """Versions that are the commits of the table destination."""
    next: int = 1

    def add(self, version: int, changes: dict[str, list[tuple[str, Row]]]) -> None:
        before = totals(self.rows["entry"])
        for table, each in changes.items():
            replay(self.rows[table], each)
        self.commits[version] = changes
        self.deltas += difference(version, before, totals(self.rows["entry"]))

    @property
    def newest(self) -> int:
        return max([0, *self.commits, *self.served])


class Steps:
    """Makes steps, and finds out which of them are there: a part of `World`, which has the warehouse."""

    engine: Engine
    model: Model
    chance: random.Random
    archive: Path

    def _step(self, name: str) -> Step:
        chance, entries = self.chance, self.model.rows["entry"]
        self.model.next += 100
        first = self.model.next
        if name == "insert":
            rows = [
                (first + n, chance.randrange(4), chance.randrange(9), "n")
                for n in range(chance.choice([1, 3]))
            ]
            return "insert", {
                "account": [(first, f"o{first}")],
                **({"entry": rows} if chance.random() < 0.7 else {}),
            }
        if name == "bulk":
            rows = [(first + n, chance.randrange(4), chance.randrange(5), "n" * 40) for n in range(40)]
            return "insert", {"entry": rows, "account": [(first, "bulk")]}
        if name in ("stream", "bulk stream"):
            return "stream", self._stream(first, 30 if name == "bulk stream" else 2, sorted(entries))
        if name == "define":
            return "define", f"t{first}"
        if name == "drop":
            others = sorted(set(self.engine.catalog.state.tables) - {"account", "entry", "totals_log"})
            return ("drop", others[0]) if others else ("define", f"t{first}")
        if name == "merge":
            return "merge", chance.choice(["entry", "entry", "account"])
        return name, str(self.archive) if name == "archive" else None

    def _stream(self, first: int, size: int, keys: list[int]) -> list[list[Change]]:
        """Two or three transactions; none touches a row twice."""
        chance, found = self.chance, []
        for number in range(chance.choice([2, 3])):
            changes: list[Change] = []
            for n in range(size):
                row = (chance.randrange(4), chance.randrange(12), "s" * chance.choice([1, 60]))
                if keys and chance.random() < 0.5:
                    key = keys.pop(chance.randrange(len(keys)))
                    old = self.model.rows["entry"][key]
                    changes.append(("D", old) if chance.random() < 0.5 else ("U", (key, *row)))
                else:
                    changes.append(("I", (first + 30 * number + n, *row)))
            found.append(changes)
        return found

    def _commits(self, step: Step) -> list[dict[str, list[tuple[str, Row]]]]:
        """What a step commits, commit by commit."""
        if step[0] == "insert":
            return [{table: [("insert", row) for row in rows] for table, rows in step[1].items()}]
        if step[0] != "stream":
            return []
        found = []
        for changes in step[1]:
            rows: list[tuple[str, Row]] = []
            for op, row in changes:
                old = self.model.rows["entry"].get(row[0])
                if op == "I":
                    rows.append(("insert", row))
                elif old is not None and op == "D":
                    rows.append(("delete", old))
                elif old is not None and old != row:
                    rows += [("update_preimage", old), ("update_postimage", row)]
            if rows:
                found.append({"entry": rows})
        return found

    def _resolve(self, pending: list[Step], must: list[Step]) -> list[Step]:
        """Which of the steps are there: each whole, or nothing of it. Everything new is one of them."""
        catalog, model = self.engine.catalog, self.model
        catalog.follow()
        known = model.newest
        found: dict[int, dict[str, list[tuple[str, Row]]]] = defaultdict(dict)
        for name in ("account", "entry", "totals_log"):
            for version, changes in history(catalog, catalog.state.tables[name].storage, known).items():
                found[version][name] = changes
        left = {n: self._commits(step) for n, step in enumerate(pending)}
        floor = max(
            catalog.floor(catalog.state.tables[name].storage.id)
            for name in ("account", "entry", "totals_log")
        )
        if floor > known:  # what was committed is forgotten already: it came in this order
            plain = [commit for n, step in enumerate(pending) for commit in left[n] if step in must]
            after = [{"totals_log": []} for _ in range(catalog.newest_version - known - len(plain))]
            found = defaultdict(dict, enumerate([*plain, *after], known + 1))
        assert sorted(found) == list(range(known + 1, catalog.newest_version + 1))
        there = [step for n, step in enumerate(pending) if not left[n]]
        for version in sorted(found):
            if set(found[version]) == {"totals_log"}:
                model.served.add(version)
                continue
            fits = [n for n, commits in left.items() if commits and _same(commits[0], found[version])]
            assert fits, f"nobody has committed {found[version]}"
            model.add(version, left[fits[0]].pop(0))
            if not left[fits[0]]:
                there.append(pending[fits[0]])
        for n, step in enumerate(pending):
            assert (
                not left[n] or left[n] == self._commits(step) or len(left[n]) == len(self._commits(step))
            ), "a part of a step is there"
            assert step not in must or step in there, "what was done is not there"
        return there


def _same(mine: dict[str, list[tuple[str, Row]]], theirs: dict[str, list[tuple[str, Row]]]) -> bool:
    return {t: Counter(rows) for t, rows in mine.items()} == {t: Counter(rows) for t, rows in theirs.items()}
