"""The table of options."""

from __future__ import annotations

from pathlib import Path

import pytest

import cq_engine
from cq_engine.core.errors import AnalysisError
from cq_engine.core.options import OPTIONS, check_option, option_names, option_value


@pytest.mark.parametrize("name", OPTIONS)
def test_a_default_is_a_value_and_nonsense_is_none(name: str) -> None:
    assert option_value(name, {}) == OPTIONS[name].default
    with pytest.raises(AnalysisError, match=name):
        option_value(name, {name: "some nonsense"})


def test_an_option_belongs_to_its_owner() -> None:
    assert option_names("engine") == ("maintenance", "look_up_cache", "restricted", "copy_paths", "retention")
    assert option_names("table") == ("retention",)
    with pytest.raises(AnalysisError):
        check_option("LOOK_UP_CACHE", "much")
    with pytest.raises(AnalysisError, match="there is no option form"):  # a query's
        check_option("form", "general")
    check_option("spark.sql.shuffle.partitions", "much")


def test_names_that_nobody_knows(tmp_path: Path) -> None:
    """`connect` says so before it makes a warehouse."""
    for name, hint in (("maintenence", "maintenance"), ("Look_up_cash", "look_up_cache")):
        with pytest.raises(AnalysisError, match=f"there is no option {name}") as caught:
            cq_engine.connect(tmp_path / "w", scheduler=False, conf={name: "on"})
        assert caught.value.hint == f"did you mean {hint}?"
    with pytest.raises(AnalysisError, match="there is no option x") as caught:
        cq_engine.connect(tmp_path / "w", scheduler=False, conf={"x": "on"})
    assert all(name in caught.value.hint for name in option_names("engine"))
    assert not (tmp_path / "w").exists()
    with cq_engine.connect(
        tmp_path / "w", scheduler=False, conf={"Retention": "3 days", "spark.any": "x"}
    ) as engine:
        assert engine.conf == {"retention": "3 days", "spark.any": "x"}
