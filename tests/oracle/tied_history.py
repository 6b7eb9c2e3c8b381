"""Random commits over few values for the queries of `tied`."""

from __future__ import annotations

import random
from typing import Any

from tests.oracle.tied import Tables

__all__ = ["TiedHistory"]


class TiedHistory:
    """Random commits over few values; keeps in `tables` what the tables must have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tables = Tables()
        self.next_id = 1

    def row(self) -> dict[str, Any]:
        pick = self.random.choice
        return {
            "p": pick((1, 2)),
            "o": pick((None, 0, 1, 1, 2)),
            "x": pick((None, 5, 6)),
            "s": pick((None, "a", "b")),
        }

    def commit(self) -> list[str]:
        """The statements of one transaction."""
        if not self.tables.t:
            return [self.insert_t(7), self.insert_e(7)]
        chances = (
            lambda: self.insert_t(2),
            lambda: self.insert_e(2),
            self.update_t,
            self.delete_t,
            self.delete_e,
        )
        return [self.random.choice(chances)() for _ in range(self.random.randint(2, 4))]

    def insert_t(self, count: int) -> str:
        rows = []
        for _ in range(count):
            number = self.next_id if self.random.random() < 0.5 else 1000 - self.next_id
            rows.append({"id": number, **self.row()})
            self.next_id += 1
        self.tables.t += rows
        return f"INSERT INTO t VALUES {', '.join(map(_literals, rows))}"

    def insert_e(self, count: int) -> str:
        rows = [self.row() for _ in range(count)]
        rows.append(dict(rows[0]))
        self.tables.e += rows
        return f"INSERT INTO e VALUES {', '.join(map(_literals, rows))}"

    def update_t(self) -> str:
        chosen, value = self.random.choice(self.tables.t), self.row()["o"]
        chosen["o"] = value
        return f"UPDATE t SET o = {_literal(value)} WHERE id = {chosen['id']}"

    def delete_t(self) -> str:
        chosen = self.random.choice(self.tables.t)
        if len(self.tables.t) > 1:
            self.tables.t.remove(chosen)
            return f"DELETE FROM t WHERE id = {chosen['id']}"
        return self.insert_t(1)

    def delete_e(self) -> str:
        p, x = self.random.choice((1, 2)), self.random.choice((5, 6))
        self.tables.e = [r for r in self.tables.e if not (r["p"] == p and r["x"] == x)]
        return f"DELETE FROM e WHERE p = {p} AND x = {x}"


def _literal(value: Any) -> str:
    return "NULL" if value is None else repr(value)


def _literals(row: dict[str, Any]) -> str:
    return f"({', '.join(map(_literal, row.values()))})"
