"""The table of the kinds of destinations."""

from __future__ import annotations

import pytest

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import AnalysisError
from cq_engine.destinations import Destination, check_declared
from cq_engine.destinations.kinds import KINDS, LATER
from cq_engine.grammar import Script


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_known_under_the_name_that_its_cursors_have(name: str) -> None:
    assert KINDS[name].of.kind == name
    assert issubclass(KINDS[name].of, Destination)
    assert name not in LATER


@pytest.mark.parametrize("name", KINDS)
def test_defaults_are_possible_values(name: str) -> None:
    for option in KINDS[name].options.values():
        if option.default is not None:
            option.check(option.default)


@pytest.mark.parametrize("name", KINDS)
def test_what_must_be_said_is_missed(name: str) -> None:
    needed = [option for option, each in KINDS[name].options.items() if each.default is None]
    if not needed:
        script = Script("DELETE FROM t") if name == "TRIGGER" else None
        check_declared(DeclaredDestination("d", name, script=script))
        return
    with pytest.raises(AnalysisError, match=f"needs the option {needed[0]}"):
        check_declared(DeclaredDestination("d", name))
