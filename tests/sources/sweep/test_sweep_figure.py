"""The example of the paper's section 5.2 (Figure 5), message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

from cq_engine.sources.sweep.maintain import Maintainer
from cq_engine.sources.sweep.model import (
    Answer,
    Ask,
    Bounds,
    Change,
    Consistency,
    Counts,
    Delta,
    Edge,
    Relation,
    Row,
    Update,
    View,
)
from tests.sources.sweep.evaluated import Bag, evaluate, step_deltas

VIEW = View(
    (
        Relation("R1", "Source 1", ("A", "B"), ("A", "B")),
        Relation("R2", "Source 2", ("C", "D"), ("C", "D")),
        Relation("R3", "Source 3", ("E", "F"), ("E", "F")),
    ),
    (Edge(("R1", "B"), ("R2", "C")), Edge(("R2", "D"), ("R3", "E"))),
)
INSERT_R2 = Change("R2", None, (3, 5))
DELETE_R3 = Change("R3", (7, 8), None)
DELETE_R1 = Change("R1", (2, 3), None)

Message = tuple[str, tuple[str, ...], set[Row], set[Row]]
"""The relation, by what it is asked, for which values, and what it answers."""


class Sources:
    """The three sources of Figure 5. Before the first answer, what is in `concurrent` happens, and is delivered."""

    def __init__(self) -> None:
        self.rows: dict[str, set[Row]] = {"R1": {(1, 3), (2, 3)}, "R2": {(3, 7)}, "R3": {(5, 6), (7, 8)}}
        self.logs: dict[str, list[Update]] = {source: [] for source in VIEW.sources}
        self.messages: list[Message] = []
        self.concurrent: list[Change] = []
        self.deliver: Callable[[], None] = lambda: None
        self._now = datetime(1997, 5, 13, tzinfo=timezone.utc)

    def happens(self, change: Change) -> None:
        if change.before is not None:
            self.rows[change.relation].remove(change.before)
        if change.after is not None:
            self.rows[change.relation].add(change.after)
        source = VIEW.by_name[change.relation].source
        self._now += timedelta(seconds=1)
        self.logs[source].append(Update(source, len(self.logs[source]) + 1, (change,), self._now))

    def ask(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        for change in self.concurrent:
            self.happens(change)
        self.concurrent = []
        self.deliver()
        answers = []
        for ask in asks:
            relation = VIEW.by_name[ask.relation]
            [place] = relation.places(ask.columns)
            rows = [row for row in self.rows[ask.relation] if (row[place],) in ask.keys]
            self.messages.append((ask.relation, ask.columns, set(ask.keys), set(rows)))
            answers.append(Answer(rows, len(self.logs[relation.source])))
        return answers

    def updates(self, source: str, after: int, upto: int | None) -> Sequence[Update]:
        return self.logs[source][after:]


def maintained(consistency: Consistency, together: int = 1) -> tuple[Sources, list[Delta]]:
    sources = Sources()
    maintainer = Maintainer(
        VIEW, dict.fromkeys(VIEW.sources, 0), sources, consistency, Bounds(together=together)
    )
    sources.deliver = lambda: maintainer.queue.pull(sources)
    sources.happens(INSERT_R2)
    sources.concurrent = [DELETE_R3, DELETE_R1]
    deltas = []
    while (delta := maintainer.run()) is not None:
        deltas.append(delta)
        for step in delta.steps:
            maintainer.committed(step)
    return sources, deltas


def shown(bag: Bag) -> dict[Row, int]:
    """Π D, F of the view, and how often."""
    found: Counter[Row] = Counter()
    for (_, r2, r3), count in bag.items():
        found[r2[1], r3[1]] += count
    return {row: count for row, count in found.items() if count}


def states(deltas: Sequence[Delta]) -> list[dict[Row, int]]:
    view = evaluate(VIEW, Sources().rows)
    found = [shown(view)]
    for change in (change for delta in deltas for change in step_deltas(VIEW, delta)):
        view.update(change)
        found.append(shown(view))
    return found


def test_sweep_goes_through_every_state_of_the_figure() -> None:
    sources, deltas = maintained(Consistency.COMPLETE)
    assert [step.updates[0].changes for delta in deltas for step in delta.steps] == [
        (INSERT_R2,),
        (DELETE_R3,),
        (DELETE_R1,),
    ]
    assert sources.messages == [
        # ΔR2 = +(3, 5). ΔR3 and ΔR1 are delivered before the answers; (2, 3) is put in again, (7, 8) joins nothing.
        ("R1", ("B",), {(3,)}, {(1, 3)}),
        ("R3", ("E",), {(5,)}, {(5, 6)}),
        # ΔR3 = −(7, 8). ΔR2 is not concurrent any more; ΔR1 is, and (2, 3) is put in again.
        ("R2", ("D",), {(7,)}, {(3, 7)}),
        ("R1", ("B",), {(3,)}, {(1, 3)}),
        # ΔR1 = −(2, 3).
        ("R2", ("C",), {(3,)}, {(3, 7), (3, 5)}),
        ("R3", ("E",), {(7,), (5,)}, {(5, 6)}),
    ]
    assert [delta.counts.messages for delta in deltas] == [2, 2, 2], "n − 1 for each update"
    assert [delta.counts.compensations for delta in deltas] == [1, 1, 0]
    assert states(deltas) == [
        {(7, 8): 2},
        {(5, 6): 2, (7, 8): 2},
        {(5, 6): 2},
        {(5, 6): 1},
    ]


def test_the_rows_of_a_sweep_are_those_of_the_state_before_the_update() -> None:
    _, deltas = maintained(Consistency.COMPLETE)
    pieces = {piece.relation: sorted(piece.rows) for piece in deltas[0].pieces}
    assert pieces == {"R1": [(1, 3), (2, 3)], "R2": [(3, 5)], "R3": [(5, 6)]}
    assert [piece.signs for piece in deltas[1].pieces if piece.relation == "R3"] == [[-1]]


def test_nested_sweep_absorbs_what_it_meets() -> None:
    sources, deltas = maintained(Consistency.STRONG)
    assert sources.messages == [
        # The left sweep of ΔR2 meets ΔR1, which is extended over R2 (its new state) and then goes along.
        ("R1", ("B",), {(3,)}, {(1, 3)}),
        ("R2", ("C",), {(3,)}, {(3, 7), (3, 5)}),
        # The right sweep of both meets ΔR3, which is extended over R2 and R1.
        ("R3", ("E",), {(5,), (7,)}, {(5, 6)}),
        ("R2", ("D",), {(7,)}, {(3, 7)}),
        ("R1", ("B",), {(3,)}, {(1, 3)}),
    ]
    [delta] = deltas
    assert [update.changes for update in delta.steps[0].updates] == [
        (INSERT_R2,),
        (DELETE_R1,),
        (DELETE_R3,),
    ]
    assert delta.counts.absorbed == 2
    assert states(deltas) == [{(7, 8): 2}, {(5, 6): 1}]


def test_a_pass_per_batch_asks_over_each_link_once_each_way() -> None:
    sources, deltas = maintained(Consistency.CONVERGENT, together=10)
    assert [len(delta.steps[0].updates) for delta in deltas] == [1, 2]
    assert states(deltas)[-1] == {(5, 6): 1}
    counts = Counts()
    for delta in deltas:
        counts.add(delta.counts)
    assert counts.messages == len(sources.messages) <= 2 + 4
