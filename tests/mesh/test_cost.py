"""The cost model: its equations by hand, and that tuning finds what trying everything finds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.mesh.cost import Factors, Model, Relation, Stream

PAPER = Relation(pages=102_540, page_bytes=4_096, row_bytes=120, selectivity=0.01)
"""R of section 4.1: 3.5 M rows of 120 bytes in pages of 4 KB."""

relations = st.builds(
    Relation,
    pages=st.integers(1, 60),
    page_bytes=st.floats(100, 1e5),
    row_bytes=st.floats(8, 100),
    selectivity=st.floats(0, 1),
)
factors = st.builds(
    Factors,
    request=st.floats(1e-5, 1e-2),
    page_byte=st.floats(1e-10, 1e-7),
    expire=st.floats(1e-9, 1e-5),
    take=st.floats(1e-9, 1e-5),
    add=st.floats(1e-9, 1e-5),
    probe=st.floats(1e-9, 1e-6),
    produce=st.floats(1e-9, 1e-5),
)
streams = st.builds(Stream, row_bytes=st.floats(4, 64), fudge=st.floats(1, 10), pointer_bytes=st.just(8.0))
models = st.builds(Model, relations, streams, factors)


def test_the_equations_by_hand() -> None:
    cost = Factors(request=0.5, page_byte=0.001, expire=1e-3, take=2e-3, add=3e-3, probe=1e-4, produce=1e-2)
    model = Model(Relation(10, 1_000, 100, 0.05), Stream(20, 1.5, 8), cost)
    w, b = 6, 2
    assert model.memory(w, b) == pytest.approx(2 * 1_000 + 6 * 20 + 6 * 5 * 8 + 6 * 1.5 * 5 * 20)  # (1)
    read = 0.5 + 2 * 1_000 * 0.001
    loop = read + 6 * (1e-3 + 2e-3 + 3e-3) + 2 * 10 * 1e-4 + 0.05 * 2 * 10 * 1e-2
    assert model.seconds(w, b) == pytest.approx(loop)  # (2)
    found = model.of(w, b)
    assert found.rate == pytest.approx(6 / loop)  # (3)
    assert found.pages_per_change == pytest.approx(2 / 6)  # (4)
    assert found.pages_per_second == pytest.approx(2 / loop)
    assert found.cycle == pytest.approx(5 * loop)
    assert found.window == pytest.approx(30)
    least = model.smallest_batch(found.rate, b)
    assert least is not None
    assert found.rate * model.seconds(w, b) <= w * (1 + 1e-9)  # (5)
    assert least == pytest.approx(6)  # (6)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(models, st.floats(1e3, 1e7))
def test_the_best_rate_is_that_of_trying_everything(model: Model, memory: float) -> None:
    tried = [(model.largest_batch(memory, b), b) for b in range(1, model.relation.pages + 1)]
    fitting = [
        (w, b)
        for w, b in tried
        if w * model.relation.pages / b >= 1 and model.memory(w, b) <= memory * 1.000001
    ]
    if not fitting:
        with pytest.raises(ValueError, match="bytes hold no page"):
            model.best_rate(memory)
        return
    best = model.best_rate(memory)
    assert best.memory <= memory * 1.000001
    assert best.rate == pytest.approx(max(model.rate(w, b) for w, b in fitting))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(models, st.floats(1, 1e6))
def test_the_least_memory_is_that_of_trying_everything(model: Model, rate: float) -> None:
    tried = [(model.smallest_batch(rate, b), b) for b in range(1, model.relation.pages + 1)]
    serving = [(w, b) for w, b in tried if w is not None]
    if not serving:
        with pytest.raises(ValueError, match="no memory serves"):
            model.least_memory(rate)
        return
    least = model.least_memory(rate)
    assert least.rate == pytest.approx(rate)
    assert least.memory == pytest.approx(min(model.memory(w, b) for w, b in serving))
    assert all(model.rate(w, b) == pytest.approx(rate) for w, b in serving), (
        "w is the smallest that serves it"
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(models, st.floats(1e4, 1e7))
def test_each_objective_undoes_the_other(model: Model, memory: float) -> None:
    try:
        best = model.best_rate(memory)
    except ValueError:
        return
    assert model.least_memory(best.rate).memory <= memory * 1.000001
    assert model.best_rate(2 * memory).rate >= best.rate * 0.999999


def test_the_curves_of_figure_5() -> None:
    """A best number of pages lies inside, for both objectives: too few cost requests, too many take the window's room."""
    model = Model(PAPER, Stream(20, 4), Factors(request=8e-3, page_byte=2e-8, probe=2e-7, produce=1e-6))
    memory = 21e6
    best = model.best_rate(memory)
    assert 1 < best.chunk < memory / PAPER.page_bytes
    assert best.rate > 2 * model.rate(model.largest_batch(memory, 1), 1)
    most = int(memory / PAPER.page_bytes) - 1
    assert best.rate > 10 * model.rate(model.largest_batch(memory, most), most)
    least = model.least_memory(2_000)
    assert 1 < least.chunk < PAPER.pages
    first, last = model.smallest_batch(2_000, 1), model.smallest_batch(2_000, PAPER.pages)
    assert first is not None
    assert last is not None
    assert least.memory < 0.5 * min(model.memory(first, 1), model.memory(last, PAPER.pages))


def test_many_pages_are_tried_in_steps() -> None:
    model = Model(Relation(10**7, 4_096, 100), Stream(), Factors())
    best = model.best_rate(10**10)
    assert math.isfinite(best.rate)
    assert best.memory <= 10**10
