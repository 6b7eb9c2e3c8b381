"""What the sweeps work on: a view over relations at sources, updates from a channel per source, questions, answers, and deltas.

Everything here is plain values; nothing knows SQL, Spark or a catalog. Who drives a sweep brings `Channels`, calls
`cq_engine.sources.sweep.maintain.Maintainer.run`, evaluates the `Delta` that comes back, and commits it with its positions.

Rows are tuples in the order of the relation's columns. Their values are hashable and comparable for equality.
Positions are ordered within a source (`<`); nothing else is asked of them.

After *Efficient View Maintenance at Data Warehouses* (Agrawal, El Abbadi, Singh, Yurek, SIGMOD 1997), called the paper below.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

__all__ = [
    "Answer",
    "Ask",
    "Bounds",
    "Change",
    "Channels",
    "Consistency",
    "Counts",
    "Delta",
    "Edge",
    "Index",
    "Link",
    "Piece",
    "Position",
    "Relation",
    "Row",
    "Step",
    "TooStaleError",
    "Update",
    "View",
]

Row = tuple[Any, ...]
Position = Any
"""Where in a source's channel; ordered within a source."""


Index = tuple[tuple[str, ...], tuple[Callable[[Any], Hashable] | None, ...]]
"""Columns of a relation, and how their values are made comparable."""


class Consistency(Enum):
    """How the states of the view follow those of the sources (the paper's section 2)."""

    COMPLETE = "COMPLETE"
    """SWEEP: every update of a source is a state of the view, in the order of arrival."""
    STRONG = "STRONG"
    """Nested SWEEP: every state of the view is a state of the sources, in their order; some may be left out."""
    CONVERGENT = "CONVERGENT"
    """One pass per batch of updates, of the net change of each relation, without the states in between.

    It promises the last state only: that of the sources once nobody writes any more. What it gives up is every state within a batch:
    a row that comes and goes in it is never seen, its transactions and their commit times cannot be told apart, and what comes
    while the pass is under way waits for the next one, where Nested SWEEP absorbs it. In return the work is that of the net
    change, over each link of the join once each way. The state after a batch is one of the sources, since answers are
    compensated as for the other levels; nothing that uses the view should rely on that.
    """


class TooStaleError(Exception):
    """A source goes on answering from before the updates that are still known here, after `Bounds.tries` questions."""

    def __init__(self, source: str) -> None:
        super().__init__(f"source {source} answers from a state that is too old")
        self.source = source


@dataclass(frozen=True)
class Relation:
    """A table at a source, as the view uses it: a table that is used twice is two relations of one source."""

    name: str
    """Unique in the view."""
    source: str
    key: tuple[str, ...]
    """The columns of its primary key, among `columns`."""
    columns: tuple[str, ...]
    """What rows consist of: key columns, columns of edges, and whatever else the view needs."""

    def __post_init__(self) -> None:
        for column in self.key:
            if column not in self.columns:
                raise ValueError(f"key column {column} of {self.name} is not among its columns")
        if not self.key:
            raise ValueError(f"relation {self.name} has no key")

    def places(self, columns: Sequence[str]) -> tuple[int, ...]:
        """Where in a row these columns are."""
        return tuple(self.columns.index(column) for column in columns)


@dataclass(frozen=True)
class Edge:
    """One equality of the join. NULL never matches. Several edges between two relations have to hold together."""

    left: tuple[str, str]
    """(relation, column)"""
    right: tuple[str, str]
    normal: Callable[[Any], Hashable] | None = None
    """Maps values of both sides so that what the engine takes for equal becomes equal here (an integer and a double, say).
    May make more equal than the engine does: whoever evaluates the delta applies the join's conditions again."""


@dataclass(frozen=True)
class Link:
    """The edges from one relation to a neighbour in the tree along which sweeps go."""

    near: str
    near_columns: tuple[str, ...]
    far: str
    far_columns: tuple[str, ...]
    normal: tuple[Callable[[Any], Hashable] | None, ...]
    """As `Edge.normal`, by column."""

    @property
    def near_index(self) -> Index:
        """By what rows of the near relation are looked up."""
        return self.near_columns, self.normal

    @property
    def far_index(self) -> Index:
        """By what rows of the far relation are looked up."""
        return self.far_columns, self.normal


@dataclass(frozen=True)
class View:
    """The join: relations in the order in which the changes of one transaction are taken (see `Step`), and its equalities.

    Sweeps go along a tree of the join graph, breadth first from the first relation; equalities outside of the tree (a circle
    of joins), residual conditions and selections are for whoever evaluates the delta.

    Raises ValueError where a name is there twice, an edge names what is not there, or the relations are not connected.
    """

    relations: tuple[Relation, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        if not self.relations or len(self.by_name) != len(self.relations):
            raise ValueError("a view needs relations with names of their own")
        for edge in self.edges:
            for name, column in (edge.left, edge.right):
                if name not in self.by_name or column not in self.by_name[name].columns:
                    raise ValueError(f"an edge names {name}.{column}, which is not there")
            if edge.left[0] == edge.right[0]:
                raise ValueError(f"an edge joins {edge.left[0]} to itself: that is a selection")
        if sum(len(links) for links in self.links.values()) != 2 * (len(self.relations) - 1):
            raise ValueError("the relations of a view have to be connected by equalities")

    @cached_property
    def by_name(self) -> Mapping[str, Relation]:
        """The relations by name."""
        return {relation.name: relation for relation in self.relations}

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The place of each relation among the relations."""
        return {relation.name: place for place, relation in enumerate(self.relations)}

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The sources, each once."""
        return tuple(dict.fromkeys(relation.source for relation in self.relations))

    @cached_property
    def links(self) -> Mapping[str, tuple[Link, ...]]:
        """From each relation, the links of the tree to its neighbours."""
        neighbours: dict[str, list[str]] = {relation.name: [] for relation in self.relations}
        for edge in self.edges:
            neighbours[edge.left[0]].append(edge.right[0])
            neighbours[edge.right[0]].append(edge.left[0])
        found: dict[str, list[Link]] = {relation.name: [] for relation in self.relations}
        reached, todo = {self.relations[0].name}, [self.relations[0].name]
        for near in todo:
            for far in neighbours[near]:
                if far not in reached:
                    reached.add(far)
                    todo.append(far)
                    found[near].append(self._link(near, far))
                    found[far].append(self._link(far, near))
        return {name: tuple(links) for name, links in found.items()}

    def sweep_order(self, origin: str) -> tuple[tuple[Link, ...], ...]:
        """What a sweep for an update of `origin` asks, link by link: the links of one level are open at the same time, and
        the branches from the origin (the paper's left and right sweeps) do not wait for each other."""
        levels, level, reached = [], self.links[origin], {origin}
        while level:
            levels.append(level)
            reached |= {link.far for link in level}
            level = tuple(
                after for link in level for after in self.links[link.far] if after.far not in reached
            )
        return tuple(levels)

    def _link(self, near: str, far: str) -> Link:
        pairs = [
            (edge.left, edge.right, edge.normal)
            if edge.left[0] == near
            else (edge.right, edge.left, edge.normal)
            for edge in self.edges
            if {edge.left[0], edge.right[0]} == {near, far}
        ]
        return Link(
            near,
            tuple(left[1] for left, _, _ in pairs),
            far,
            tuple(right[1] for _, right, _ in pairs),
            tuple(normal for _, _, normal in pairs),
        )


@dataclass(frozen=True)
class Change:
    """A row of a relation before and after; None where there was or is none. The key may change."""

    relation: str
    before: Row | None
    after: Row | None


@dataclass(frozen=True)
class Update:
    """One transaction of a source. One that touches a table used twice has each change once for either relation."""

    source: str
    position: Position
    changes: tuple[Change, ...]
    committed: datetime | None = None


@dataclass(frozen=True)
class Ask:
    """One message: the rows of a relation whose `columns` have one of the `keys`.

    A source may answer with more rows than were asked for. Keys are distinct and have no NULL.
    """

    relation: str
    columns: tuple[str, ...]
    keys: tuple[Row, ...]
    steps: tuple[int, ...] = ()
    """For which steps of the delta it is sent."""


@dataclass(frozen=True)
class Answer:
    """Rows of the relation, each at most once, as of one state of the source."""

    rows: Sequence[Row]
    seen: Position
    """That state: it has exactly the updates with positions up to here. It may be ahead of what the channel has brought so
    far, or behind it."""


class Channels(Protocol):
    """How sources are reached: one FIFO channel of updates for each, and questions."""

    def ask(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """The answers in the order of the questions, which are open at the same time: they may run in parallel."""
        ...

    def updates(self, source: str, after: Position, upto: Position | None) -> Sequence[Update]:
        """Updates of the source after a position, in their order.

        At least all up to `upto`: an answer has seen them, so they are in the log. Without it, what is there now, which may be
        cut off anywhere between two updates.
        """
        ...


@dataclass(frozen=True)
class Bounds:
    """Numbers from `Limits`, handed over so that this package needs no catalog."""

    together: int = 1_000
    """Updates of which the sweeps share their messages (COMPLETE), or that become one batch (CONVERGENT). With 1, an update has
    n − 1 messages of its own, as in the paper."""
    absorbed: int = 1_000
    """Updates that a nested sweep absorbs before it is forced to end (the paper's section 6.2)."""
    rows: int = 1_000_000
    """Rows of all terms in memory. With more, a run ends behind fewer updates (COMPLETE), or absorbs no more of them (STRONG); one
    step is never cut, so a batch (CONVERGENT) is as large as it is."""
    keys: int = 10_000
    """Keys in one question; more are several messages."""
    history: int = 10_000
    """Changes that stay known after they have been maintained, for answers from before them."""
    tries: int = 5
    """Questions to a source whose answers are older than that."""


@dataclass
class Counts:
    """What a run has cost."""

    messages: int = 0
    """Questions sent; each has one answer."""
    keys_sent: int = 0
    rows_received: int = 0
    compensations: int = 0
    """Answers that were taken back to, or forward to, another state than that of the source."""
    rows_compensated: int = 0
    """Keys of rows whose image was put in the place of what the source had answered."""
    absorbed: int = 0
    """Updates that joined the sweep of another one."""
    forced: int = 0
    """Nested sweeps that were forced to end, and runs that were cut off, by a bound."""
    waits: int = 0
    """Answers that were ahead of the channel, so that it had to be read first."""
    asked_again: int = 0
    """Questions that were sent again since the answer was too old."""
    seconds_asking: float = 0.0
    seconds_waiting: float = 0.0

    def add(self, other: Counts) -> None:
        """Adds those of another run."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class Step:
    """One transition of the view: from the state after the step before it to one that has `updates`, too.

    COMPLETE: a step for each update. STRONG and CONVERGENT: one step of a run, however many updates it has.
    """

    number: int
    updates: tuple[Update, ...]
    """In the order in which they were taken; that of each source is kept."""
    positions: Mapping[str, Position]
    """By source, where the view is after this step: to be written in the commit of its delta."""


@dataclass(frozen=True)
class Piece:
    """Rows of one relation that take part in a term."""

    term: int
    relation: str
    rows: Sequence[Row]
    signs: Sequence[int] | None = None
    """+1 and −1 by row, of the relation whose change the term is of; None means +1 for all rows."""


@dataclass(frozen=True)
class Delta:
    """The change of the view, as terms: each is a join of one piece of every relation, and they are added.

    ΔV of step s = Σ over terms t of s: ⋈ of the pieces of t, the sign of a row of the join being the product of the signs.

    So one statement evaluates everything: each relation is a table of (term, sign, its columns), joined by term and by the
    view's own conditions. Rows of a piece may have no partner; a term that lacks a piece is left out beforehand.
    """

    steps: tuple[Step, ...]
    terms: tuple[int, ...]
    """By term, the number of its step."""
    pieces: tuple[Piece, ...]
    counts: Counts = field(default_factory=Counts, compare=False)
    more: bool = False
    """Whether updates are in the queue already that the last step does not have: another run has something to do."""

    def rows(self, relation: str) -> Iterator[tuple[int, int, Row]]:
        """(term, sign, row) of all pieces of a relation."""
        for piece in self.pieces:
            if piece.relation == relation:
                signs = piece.signs if piece.signs is not None else [1] * len(piece.rows)
                for sign, row in zip(signs, piece.rows):
                    yield piece.term, sign, row
