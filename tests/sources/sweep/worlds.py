"""Random views over random sources."""

from __future__ import annotations

from random import Random
from typing import Any

from cq_engine.sources.sweep.model import Edge, Relation, Row, View
from tests.sources.sweep.network import Habits, Network, Source

__all__ = ["world"]

KEYS = 5


def world(rng: Random, habits: Habits, budget: int) -> Network:
    """A network of sources with one or two tables each, some of which the view uses twice."""
    count = rng.choice((3, 3, 4, 5))
    names = [f"s{number}" for number in range(count)]
    tables: dict[str, str] = {}
    relations: list[Relation] = []
    for place, source in enumerate(names):
        for table in range(rng.choice((1, 1, 1, 1, 2))):
            if len(relations) + count - place > 5:
                break
            key = ("k", "l") if rng.random() < 0.15 else ("k",)
            columns = tuple(rng.sample(["k", "a", "b", *(["l"] if "l" in key else [])], k=3 + (len(key) > 1)))
            for use in range(2 if rng.random() < 0.2 and len(relations) + count - place < 5 else 1):
                relations.append(Relation(f"r{place}{table}{'xy'[use]}", source, key, columns))
                tables[relations[-1].name] = f"t{place}{table}"
    rng.shuffle(relations)
    view = View(tuple(relations), _edges(rng, relations))
    network_sources = {
        name: Source(name, {tables[r.name]: {} for r in relations if r.source == name}) for name in names
    }
    network = Network(view, tables, network_sources, _value, rng, habits, budget)
    for relation in relations:
        rows = network_sources[relation.source].tables[tables[relation.name]]
        for _ in range(rng.randint(2, 6)):
            row: Row = tuple(_value(rng, relation.name, column) for column in relation.columns)
            rows.setdefault(tuple(row[place] for place in relation.places(relation.key)), row)
    for source_ in network_sources.values():
        source_.states[0] = source_.copy()
    return network


def _edges(rng: Random, relations: list[Relation]) -> tuple[Edge, ...]:
    chain = rng.random() < 0.5
    edges = []
    for place in range(1, len(relations)):
        other = relations[place - 1] if chain else rng.choice(relations[:place])
        edges += [_edge(rng, other, relations[place]) for _ in range(2 if rng.random() < 0.15 else 1)]
    if len(relations) > 2 and rng.random() < 0.2:
        edges.append(_edge(rng, *rng.sample(relations, 2)))
    return tuple(dict.fromkeys(edges))


def _edge(rng: Random, one: Relation, other: Relation) -> Edge:
    columns = ("k", "a", "a", "b", "b", "b")
    sides = [(relation.name, rng.choice(columns)) for relation in (one, other)]
    rng.shuffle(sides)
    return Edge(sides[0], sides[1], _size if rng.random() < 0.1 else None)


def _size(value: float) -> float:
    """What an engine may take for equal that Python does not: numbers that differ in their sign."""
    return abs(value)


def _value(rng: Random, relation: str, column: str) -> Any:
    del relation
    if column in {"k", "l"}:
        return rng.randrange(KEYS if column == "k" else 2)
    drawn = rng.random()
    if drawn < 0.05:
        return None
    if column == "b" and drawn < 0.1:
        return float("nan")
    if column == "b" and drawn < 0.15:
        return -1
    return rng.choice((0, 0, 1))
