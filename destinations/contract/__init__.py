"""The contract of destinations as tests, for who writes one. Needs pytest, which the engine does not.

from cq_engine.destinations.contract import SinkContract

class TestMine(SinkContract):
    sink = MySink
    def options(self, target): ...
    def received(self, target): ...
    def break_down(self, target): ...
    def repair(self, target): ...
"""

import pytest

pytest.register_assert_rewrite("cq_engine.destinations.contract.suite")

from cq_engine.destinations.contract.subject import SinkSubject, Subject  # noqa: E402
from cq_engine.destinations.contract.suite import DestinationContract, SinkContract  # noqa: E402
from cq_engine.destinations.contract.world import Crash, Line, World, crash_point  # noqa: E402

__all__ = [
    "Crash",
    "DestinationContract",
    "Line",
    "SinkContract",
    "SinkSubject",
    "Subject",
    "World",
    "crash_point",
]
