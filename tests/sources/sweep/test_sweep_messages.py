"""What sweeps cost: messages, and which of them are not sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cq_engine.sources.sweep.maintain import Maintainer
from cq_engine.sources.sweep.model import (
    Answer,
    Ask,
    Bounds,
    Change,
    Consistency,
    Delta,
    Edge,
    Relation,
    Row,
    TooStaleError,
    Update,
    View,
)

N = 5
CHAIN = View(
    tuple(Relation(f"r{place}", f"s{place}", ("k",), ("k", "a", "b")) for place in range(N)),
    tuple(Edge((f"r{place}", "b"), (f"r{place + 1}", "a")) for place in range(N - 1)),
)


class Still:
    """Sources that change only between runs. Every relation has a row (k, k, k) for each of the keys; `write` puts it in, or
    takes it out."""

    def __init__(self, keys: int = 20, behind: int = 0) -> None:
        self.rows: dict[str, dict[Row, Row]] = {
            relation.name: {(k,): (k, k, k) for k in range(keys)} for relation in CHAIN.relations
        }
        self.logs: dict[str, list[Update]] = {source: [] for source in CHAIN.sources}
        self.rounds: list[Sequence[Ask]] = []
        self.behind = behind

    def write(self, place: int, *keys: int) -> None:
        changes = []
        for key in keys:
            old = self.rows[f"r{place}"].pop((key,), None)
            changes.append(Change(f"r{place}", old, (key, key, key) if old is None else None))
            if old is None:
                self.rows[f"r{place}"][key,] = (key, key, key)
        log = self.logs[f"s{place}"]
        log.append(Update(f"s{place}", len(log) + 1, tuple(changes)))

    def ask(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        self.rounds.append(asks)
        return [self._answer(ask) for ask in asks]

    def updates(self, source: str, after: int, upto: int | None) -> Sequence[Update]:
        return self.logs[source][after:]

    def _answer(self, ask: Ask) -> Answer:
        [place] = CHAIN.by_name[ask.relation].places(ask.columns)
        rows = [row for row in self.rows[ask.relation].values() if (row[place],) in ask.keys]
        return Answer(rows, len(self.logs[CHAIN.by_name[ask.relation].source]) - self.behind)


def maintainer(sources: Still, consistency: Consistency, **bounds: int) -> Maintainer:
    return Maintainer(CHAIN, dict.fromkeys(CHAIN.sources, 0), sources, consistency, Bounds(**bounds))


def run(given: Maintainer) -> Delta:
    delta = given.run()
    assert delta is not None
    for step in delta.steps:
        given.committed(step)
    return delta


@pytest.mark.parametrize("consistency", Consistency)
@pytest.mark.parametrize("place", range(N))
def test_an_update_by_itself_has_n_minus_1_messages(consistency: Consistency, place: int) -> None:
    sources = Still(keys=3)
    sources.write(place, 7)
    for other in set(range(N)) - {place}:
        sources.rows[f"r{other}"][7,] = (7, 7, 7)
    assert run(maintainer(sources, consistency)).counts.messages == N - 1
    asked = [ask.relation for asks in sources.rounds for ask in asks]
    assert sorted(asked) == sorted({f"r{other}" for other in range(N)} - {f"r{place}"})


def test_the_left_and_the_right_sweep_are_open_at_the_same_time() -> None:
    sources = Still()
    sources.write(1, 3)
    run(maintainer(sources, Consistency.COMPLETE))
    assert [[ask.relation for ask in asks] for asks in sources.rounds] == [["r0", "r2"], ["r3"], ["r4"]]
    assert CHAIN.sweep_order("r1")[0] == CHAIN.links["r1"]
    assert [[link.far for link in level] for level in CHAIN.sweep_order("r1")] == [
        ["r0", "r2"],
        ["r3"],
        ["r4"],
    ]


def test_a_question_without_keys_is_not_sent() -> None:
    sources = Still(keys=0)
    sources.write(2, 7)
    delta = run(maintainer(sources, Consistency.COMPLETE))
    assert delta.counts.messages == 2  # both neighbours have nothing, so nobody else is asked
    assert delta.terms == ()
    assert delta.steps[0].positions["s2"] == 1


def test_updates_share_messages_and_have_states_of_their_own() -> None:
    sources, keys = Still(keys=0), range(12)
    for key in keys:
        for place in range(N):
            sources.write(place, key)
    delta = run(maintainer(sources, Consistency.COMPLETE))
    assert len(delta.steps) == N * len(keys)
    assert delta.counts.messages <= 2 * (N - 1)
    assert delta.counts.absorbed == N * len(keys) - 1


def test_keys_are_sent_in_batches() -> None:
    sources = Still(keys=10)
    sources.write(0, *range(10, 20))
    for other in range(1, N):
        sources.rows[f"r{other}"] |= {(key,): (key, key, key) for key in range(10, 20)}
    delta = run(maintainer(sources, Consistency.COMPLETE, keys=4))
    assert [[len(ask.keys) for ask in asks] for asks in sources.rounds] == [[4, 4, 2]] * (N - 1)
    assert delta.counts.keys_sent == delta.counts.rows_received == 10 * (N - 1)
    assert sorted(row for _, _, row in delta.rows("r4")) == [(key, key, key) for key in range(10, 20)]


def test_several_updates_of_a_source_are_one_compensation() -> None:
    sources = Still()
    given = maintainer(sources, Consistency.COMPLETE, together=1)
    sources.write(0, 30)
    for _ in range(5):
        sources.write(1, 30)
    counts = run(given).counts
    assert (counts.compensations, counts.rows_compensated) == (1, 1)


def test_nested_sweeps_are_forced_to_end() -> None:
    sources = Still(keys=0)
    for key in range(6):
        sources.write(0, key)
        sources.write(1, key)
    given = maintainer(sources, Consistency.STRONG, absorbed=4)
    delta = run(given)
    assert len(delta.steps[0].updates) == 4
    assert delta.counts.forced == 1
    taken = 4
    while (delta_ := given.run()) is not None:
        taken += len(delta_.steps[0].updates)
        given.committed(delta_.steps[0])
    assert taken == 12


@pytest.mark.parametrize("rows", [0, 7, 40])
def test_a_run_ends_where_its_rows_are_too_many(rows: int) -> None:
    """Each update is joined by five rows of each of the four other relations."""
    sources = Still(keys=0)
    for other in range(1, N):
        sources.rows[f"r{other}"] = {(k,): (k, 1, 1) for k in range(5)}
    for position in range(1, 7):
        images = (None, (0, 1, 1)) if position % 2 else ((0, 1, 1), None)
        sources.logs["s0"].append(Update("s0", position, (Change("r0", *images),)))
    given = maintainer(sources, Consistency.COMPLETE, rows=rows)
    positions, more = [], []
    while (delta := given.run()) is not None:
        positions += [step.positions["s0"] for step in delta.steps]
        more.append(delta.more)
        gathered = sum(len(piece.rows) for piece in delta.pieces if piece.signs is None)
        assert gathered <= max(rows, 5 * (N - 1))
        assert len(delta.terms) == len(delta.steps)
        assert delta.counts.forced == delta.more
        for step in delta.steps:
            given.committed(step)
    assert positions == [1, 2, 3, 4, 5, 6]
    assert more == [True] * (len(more) - 1) + [False]
    assert len(more) == (3 if rows == 40 else 6)


def test_a_source_that_stays_behind_is_told() -> None:
    sources = Still(behind=3)
    given = maintainer(sources, Consistency.COMPLETE, history=0, tries=3)
    for key in range(30, 36):
        sources.write(1, key)
    sources.behind = 0
    run(given)
    sources.behind = 3
    sources.write(0, 31)
    with pytest.raises(TooStaleError, match="s1"):
        given.run()
    assert len(sources.rounds[-1]) == 1
    sources.behind = 0
    assert run(given).counts.asked_again == 0, "what has failed can be run again"


def test_nothing_to_do_is_no_delta() -> None:
    assert maintainer(Still(), Consistency.STRONG).run() is None


def test_an_update_of_nothing_is_a_step_without_terms() -> None:
    sources = Still()
    sources.logs["s1"].append(Update("s1", 1, (Change("r1", (1, 1, 1), (1, 1, 1)),)))
    for consistency in Consistency:
        delta = run(maintainer(sources, consistency))
        assert len(delta.steps) == 1
        assert delta.terms == ()
        assert delta.counts.messages == 0


@pytest.mark.parametrize("before", [None, (1, 1, 1)], ids=["not there", "another row"])
def test_a_channel_that_has_left_something_out_is_refused(before: Row | None) -> None:
    sources = Still()
    sources.logs["s1"] = [
        Update("s1", 1, (Change("r1", (1, 1, 1), (1, 2, 2)),)),
        Update("s1", 2, (Change("r1", before, (1, 3, 3)),)),
    ]
    with pytest.raises(ValueError, match=r"r1 \(1,\) at position 2"):
        maintainer(sources, Consistency.STRONG).run()


def test_positions_out_of_order_are_refused() -> None:
    sources = Still()
    sources.logs["s1"] = [Update("s1", 2, ()), Update("s1", 2, ())]
    with pytest.raises(ValueError, match="out of order"):
        maintainer(sources, Consistency.STRONG).run()
