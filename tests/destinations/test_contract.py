"""The contract suite over the engine's own destinations, and the layout of what they give."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from cq_engine.destinations.contract import DestinationContract


class TestContract(DestinationContract):
    """`subject` stands in conftest.py."""


def test_rows_have_the_layout_of_the_select_list(subject: Any, make: Any) -> None:
    row = make["row"]
    version = subject.world.refresh(
        ("I", row(1)), ("U", row(2, "a", "1.00"), row(2, "b", "2.00")), ("D", row(3, "gone", "9.00"))
    )
    committed = subject.world.catalog.timestamp(version)
    subject.deliver()
    head = ("id", "name", "amount", "was", "doubled", "m")
    assert [tuple(line[n] for n in head) for line in subject.rows()] == [
        (1, "n1", Decimal("1.50"), None, None, "I"),
        (2, "b", Decimal("2.00"), Decimal("1.00"), 4, "U"),
        (3, "gone", Decimal("9.00"), Decimal("9.00"), 6, "D"),
    ]
    for line in subject.rows():
        assert line["committed"] == committed
        assert line["refreshed"] == committed + timedelta(seconds=1)
        assert line["v"] == version
