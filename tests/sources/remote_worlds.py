"""Three databases with a table each, whoever writes to them, and what a join of them may have been at any time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from cq_engine import Engine
from tests.sources.shops import Shop

__all__ = ["NAMES", "QUERY", "Bag", "Vector", "World", "possible", "states"]

Row = tuple[Any, ...]
Bag = Counter[Row]
Vector = tuple[int, ...]
"""How many transactions of each source a state has."""

NAMES = ("r", "s", "t")
TABLES = {
    "r": "a INT NOT NULL PRIMARY KEY, b INT, x {text}",
    "s": "b INT NOT NULL, k {text}, y INT, PRIMARY KEY (b, y)",
    "t": "n INT NOT NULL PRIMARY KEY, k {text}, z INT",
}
DECLARED = {
    "r": "a INT, b INT, x STRING, PRIMARY KEY (a)",
    "s": "b INT, k STRING, y INT, PRIMARY KEY (b, y)",
    "t": "n INT, k STRING, z INT, PRIMARY KEY (n)",
}
TEXT = {"sqlite": "TEXT COLLATE NOCASE", "postgresql": "text", "mariadb": "VARCHAR(20)"}
QUERY = """
SELECT r.a, s.y, t.n, r.x, s.k, t.z FROM r JOIN s ON r.b = s.b JOIN t ON t.k = s.k WHERE r.a <> 3 AND t.z + s.y < 11
"""


class _TakenBack(Exception):
    pass


@dataclass
class World:
    """One table at each of the databases, and the rows that each has had, transaction by transaction."""

    shops: tuple[Shop, Shop, Shop]
    dice: random.Random
    slot: str = ""
    """Of PostgreSQL's own log, where that is read and triggers write none."""
    history: list[list[frozenset[Row]]] = field(default_factory=lambda: [[], [], []])
    failures: list[BaseException] = field(default_factory=list)

    def create(self) -> None:
        for place, (name, shop) in enumerate(zip(NAMES, self.shops)):
            shop.run(f"DROP TABLE IF EXISTS {name}")
            shop.run(f"CREATE TABLE {name} ({TABLES[name].format(text=TEXT[shop.kind])})")
            if self.slot and shop.kind == "postgresql":
                shop.run(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
            self.history[place].append(frozenset())
            for _ in range(8):
                self.transaction(place)

    def declare(self, engine: Engine) -> None:
        for name, shop in zip(NAMES, self.shops):
            engine.execute(f"CREATE SOURCE at_{name} TYPE {shop.kind} WITH (url = '{shop.url}')")
            engine.execute(self.declaration(name))

    def declaration(self, name: str) -> str:
        """CREATE TABLE of one of the tables, which stays where it is."""
        is_decoded = self.slot and self.shops[NAMES.index(name)].kind == "postgresql"
        log = f"slot = '{self.slot}'" if is_decoded else "install = true"
        return f"CREATE TABLE {name} ({DECLARED[name]}) REMOTE FROM at_{name} TABLE '{name}' USING LOG WITH ({log})"

    def transaction(self, place: int, dice: random.Random | None = None) -> None:
        """Some changes at once, now and then taken back."""
        dice, shop, name = dice or self.dice, self.shops[place], NAMES[place]
        with suppress(_TakenBack), shop.database.write() as session:
            run = session.connection.exec_driver_sql
            for _ in range(dice.randint(1, 3)):
                for sql in self.change(place, dice):
                    run(sql)
            if dice.random() < 0.15:
                raise _TakenBack
            rows = frozenset(tuple(row) for row in run(f"SELECT * FROM {name}"))
        if "rows" in locals():
            self.history[place].append(rows)

    def change(self, place: int, dice: random.Random) -> list[str]:
        number, other = dice.randint(1, 6), dice.randint(1, 3)
        word = dice.choice(["'a'", "'a'", "'b'", "'b'", "'A'", "'b '", "NULL"])
        kind, server = dice.random(), self.shops[place].kind
        if place == 0:
            key, row = f"a = {number}", f"({number}, {dice.choice([1, 2, 3, 'NULL'])}, {word})"
            sets = dice.choice([f"b = {other}", f"x = {word}", f"a = {number + dice.choice([0, 6])}"])
        elif place == 1:
            key, row = f"b = {other} AND y = {number}", f"({other}, {word}, {number})"
            sets = dice.choice([f"k = {word}", f"b = {other + dice.choice([0, 5])}"])
        else:
            key, row = f"n = {number}", f"({number}, {word}, {dice.randint(1, 9)})"
            sets = dice.choice(
                [f"k = {word}", f"z = {dice.randint(1, 9)}", f"n = {number + dice.choice([0, 6])}"]
            )
        name = NAMES[place]
        if kind < 0.2:
            return [f"DELETE FROM {name} WHERE {key}"]
        if kind < 0.5:
            free = {"sqlite": "UPDATE OR REPLACE", "mariadb": "UPDATE IGNORE", "postgresql": "UPDATE"}[server]
            return (
                [f"{free} {name} SET {sets} WHERE {key}"]
                if server != "postgresql"
                else self._moved(name, key, sets)
            )
        if server == "postgresql":
            return [f"DELETE FROM {name} WHERE {key}", f"INSERT INTO {name} VALUES {row}"]
        return [f"REPLACE INTO {name} VALUES {row}"]

    def _moved(self, name: str, key: str, sets: str) -> list[str]:
        """In PostgreSQL an error ends a transaction: the place of a row that moves is made free before."""
        column, _, number, *_ = key.split()
        if not sets.startswith(f"{column} ="):
            return [f"UPDATE {name} SET {sets} WHERE {key}"]
        return [
            f"DELETE FROM {name} WHERE {key.replace(f'{column} = {number}', sets)} AND NOT ({key})",
            f"UPDATE {name} SET {sets} WHERE {key}",
        ]

    @contextmanager
    def at_work(self) -> Iterator[Callable[[int], None]]:
        """Somebody writes to each of the tables during the block, as many transactions as are asked for."""
        may = [threading.Semaphore(0) for _ in self.shops]
        ended = threading.Event()

        def write(place: int, dice: random.Random) -> None:
            try:
                while may[place].acquire() and not ended.is_set():
                    self.transaction(place, dice)
                    ended.wait(dice.random() * 0.1)
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.failures.append(error)

        def go(transactions: int) -> None:
            for each in may:
                each.release(transactions)

        threads = [
            threading.Thread(target=write, args=(place, random.Random(self.dice.random())))
            for place in range(len(may))
        ]
        for thread in threads:
            thread.start()
        try:
            yield go
        finally:
            ended.set()
            go(1)
            for thread in threads:
                thread.join()
        assert not self.failures

    # ------------------------------------------------------------ what may have been

    def view(self, vector: Vector) -> Bag:
        """The query over the tables after so many transactions, worked out row by row."""
        r, s, t = (self.history[place][number] for place, number in enumerate(vector))
        return Counter(
            (a, y, n, x, k, z)
            for a, b, x in r
            if a != 3
            for sb, k, y in s
            if b is not None and b == sb
            for n, tk, z in t
            if k is not None and k == tk and z is not None and z + y < 11
        )

    @property
    def ends(self) -> Vector:
        return tuple(len(of) - 1 for of in self.history)


def states(engine: Engine, query: str = "v") -> list[Bag]:
    """The results of a query, version by version, from its deltas."""
    found, now = [], Counter[Row]()
    rows = engine.execute(f"SELECT * FROM {query} CHANGES FROM VERSION 1").fetchall()
    versions: dict[int, list[Row]] = {}
    for row in rows:
        versions.setdefault(row[-2], []).append(row)
    for version in sorted(versions):
        now = now.copy()
        for *values, kind, _, _ in versions[version]:
            now[tuple(values)] += -1 if kind in ("delete", "update_preimage") else 1
        now = +now
        found.append(now)
    return found


def possible(world: World, seen: list[Bag], *, complete: bool, begin: Vector) -> str:
    """Why the states cannot be those of the sources in their order; empty where they can.

    Complete: each is one transaction of one source further, as far as that source tells its transactions, and others may have
    passed that do not concern the view. Else any number of transactions of any source further.
    """
    paths = _Paths(world, complete)
    now = paths.silent({begin})
    for number, bag in enumerate(seen):
        if bag != paths.view(next(iter(now))):
            now = paths.silent(paths.visible(now, bag))
        if not now:
            return f"state {number} of {len(seen)} is none of the sources': {dict(bag)}"
    if world.ends in now:
        return ""
    wanted, last = world.view(world.ends), seen[-1] if seen else Counter()
    return f"the last state has {dict(last - wanted)} too much, and not {dict(wanted - last)}"


class _Paths:
    """Ways from one state of the sources to later ones."""

    def __init__(self, world: World, complete: bool) -> None:
        self.world = world
        self.complete = complete
        self.known: dict[Vector, Bag] = {}

    def view(self, vector: Vector) -> Bag:
        if vector not in self.known:
            self.known[vector] = self.world.view(vector)
        return self.known[vector]

    def further(self, vector: Vector) -> Iterator[tuple[Vector, int]]:
        """One transaction further, and of which source."""
        for place, end in enumerate(self.world.ends):
            if vector[place] < end:
                yield (*vector[:place], vector[place] + 1, *vector[place + 1 :]), place

    def tells(self, place: int) -> bool:
        """Whether no two transactions of a source may be taken for one."""
        return self.complete and self.world.shops[place].kind == "postgresql"

    def silent(self, vectors: set[Vector]) -> set[Vector]:
        """All that are reached without a change of the view. One that is taken back by the next transaction is none, where the
        two may be taken for one."""
        if not self.complete:
            return vectors | self.visible(vectors, self.view(next(iter(vectors)))) if vectors else vectors
        todo, found = list(vectors), set(vectors)
        while todo:
            vector = todo.pop()
            for after in self._together(vector):
                if after not in found and self.view(after) == self.view(vector):
                    found.add(after)
                    todo.append(after)
        return found

    def _together(self, vector: Vector) -> Iterator[Vector]:
        """What is reached by one transaction, or by several that may be taken for one."""
        for after, place in self.further(vector):
            yield after
            for number in () if self.tells(place) else range(after[place] + 1, self.world.ends[place] + 1):
                yield (*after[:place], number, *after[place + 1 :])

    def visible(self, vectors: set[Vector], wanted: Bag) -> set[Vector]:
        """Those with the wanted view that are reached in one step."""
        found: set[Vector] = set()
        passed: set[tuple[Vector, int | None]] = {(vector, None) for vector in vectors}
        todo = list(passed)
        while todo:
            vector, only = todo.pop()
            for after, place in self.further(vector):
                if only not in (None, place):
                    continue
                if self.view(after) == wanted:
                    found.add(after)
                key = (after, place if self.complete else None)
                if not self.tells(place) and key not in passed:
                    passed.add(key)
                    todo.append(key)
        return found
