"""The table of options."""

from __future__ import annotations

import pytest

from cq_engine.core.errors import AnalysisError
from cq_engine.core.options import OPTIONS, check_option, option_names, option_value


@pytest.mark.parametrize("name", OPTIONS)
def test_a_default_is_a_value_and_nonsense_is_none(name: str) -> None:
    assert option_value(name, {}) == OPTIONS[name].default
    with pytest.raises(AnalysisError, match=name):
        option_value(name, {name: "some nonsense"})


def test_an_option_belongs_to_its_owner() -> None:
    assert option_names("engine") == ("maintenance", "look_up_cache", "retention")
    assert option_names("table") == ("retention",)
    with pytest.raises(AnalysisError):
        check_option("LOOK_UP_CACHE", "much")
    check_option("form", "much")  # a query's: not checked as one of the engine
    check_option("spark.sql.shuffle.partitions", "much")
