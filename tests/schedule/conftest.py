"""A scheduler whose clock is turned by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cq_engine.core.clock import ManualClock
from cq_engine.schedule.scheduler import Scheduler
from tests.schedule.runs import START, Runs


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def scheduler(clock: ManualClock, runs: Runs) -> Iterator[Scheduler]:
    made = Scheduler(clock, runs.run, on_error=runs.on_error)
    yield made
    made.shutdown()
