"""What makes some worlds special: tables that refer to themselves, columns that come later, queries over queries."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from tests.adversary.history import Addition
from tests.adversary.kinds import KEY_KINDS, PLAIN, SPECIAL
from tests.adversary.tables import Reference, Table

__all__ = [
    "SOURCE",
    "TWISTS",
    "expanded",
    "named",
    "needed",
    "referring_to_themselves",
    "some_additions",
    "some_twists",
]

TWISTS = ("itself", "columns", "queries")
SOURCE = re.compile(r"\bb(\d+) (s\d+)\b")
"""Where a query reads another one: that of this number, by this alias."""

_STAR = re.compile(r"\b(s\d+)\.\*")
_ADDED = re.compile(r"\bs\d+\.n(\d+)\b")


def some_twists(seed: str) -> frozenset[str]:
    """Each in three worlds of ten; so every third world has none and is what it was before they were thought of."""
    chosen = random.Random(f"{seed}/twists")
    return frozenset(twist for twist in TWISTS if chosen.random() < 0.3)


# ------------------------------------------------------------ tables that refer to themselves


def referring_to_themselves(chosen: random.Random, tables: Sequence[Table]) -> tuple[Table, ...]:
    """One or two of the tables get a foreign key to their own key; a part of it may be a part of the key."""
    keyed = [t.name for t in tables if t.key]
    names = chosen.sample(keyed, min(len(keyed), chosen.choice((1, 1, 2))))
    return tuple(_to_itself(chosen, t) if t.name in names else t for t in tables)


def _to_itself(chosen: random.Random, table: Table) -> Table:
    """k2 is referred to by p2, m2 by q2."""
    shared = table.key[:1] if len(table.key) > 1 and chosen.random() < 0.4 else ()
    mine = tuple(k if k in shared else {"k": "p", "m": "q"}[k[0]] + k[1:] for k in table.key)
    reference = Reference(mine, table.name, _promise(chosen), table.key)
    kinds = dict(table.columns)
    more = tuple((m, kinds[k]) for m, k in zip(mine, table.key) if m != k)
    return replace(table, columns=(*table.columns, *more), references=(*table.references, reference))


def _promise(chosen: random.Random) -> str:
    return chosen.choice(("ENFORCED", "ENFORCED", "NOT ENFORCED RELY", ""))


# ------------------------------------------------------------ columns that come later


def some_additions(
    chosen: random.Random, tables: Sequence[Table], allowed: Collection[str], itself: bool
) -> list[Addition]:
    """A few ALTER TABLE, one after the other: n1 is the column of the first of them, and n2 that of the second.

    With `itself` a column may be a foreign key of its table to itself.
    """
    now = {t.name: t for t in tables}
    additions = []
    for number in range(1, chosen.choice((1, 2, 2, 3)) + 1):
        table = now[chosen.choice(sorted(now))]
        name, kind = f"n{number}", chosen.choice([k for k in (*PLAIN, *SPECIAL, *KEY_KINDS) if k in allowed])
        links: tuple[Reference, ...] = ()
        if itself and len(table.key) == 1 and table.to_itself is None:
            kind = dict(table.columns)[table.key[0]]
            links = (Reference((name,), table.name, _promise(chosen), table.key),)
        word = chosen.choice((f"COLUMN {name} {kind}", f"COLUMNS ({name} {kind})"))
        wide = replace(
            table, columns=(*table.columns, (name, kind)), added=(*table.added, name),
            references=(*table.references, *links),
        )  # fmt: skip
        altered = [
            f"ALTER TABLE {table.name} ADD {word}",
            *(f"ALTER TABLE {table.name} ADD {r.sql}" for r in links),
        ]
        additions.append(Addition(wide, tuple(altered)))
        now[table.name] = wide
    return additions


def needed(text: str) -> int:
    """How many of the additions have to be made before the query can be created."""
    return max((int(number) for number in _ADDED.findall(text)), default=0)


def expanded(text: str, tables: Sequence[Table]) -> str:
    """The query with its stars as columns, as the tables are."""

    def columns(star: re.Match[str]) -> str:
        alias = star[1]
        table = next(t for t in tables if f" {t.name} {alias}" in text)
        return ", ".join(f"{alias}.{name}" for name, _ in table.columns)

    return _STAR.sub(columns, text)


# ------------------------------------------------------------ queries over queries


def named(text: str, source: Callable[[int], str]) -> str:
    """The query with what `source` says in the place of the numbers of others."""
    return SOURCE.sub(lambda found: f"{source(int(found[1]))} {found[2]}", text)
