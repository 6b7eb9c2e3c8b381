"""The public names, listed."""

from __future__ import annotations

import cq_engine


def test_every_public_name_can_be_imported() -> None:
    for name in cq_engine.__all__:
        assert getattr(cq_engine, name) is not None
    assert sorted(cq_engine.__all__) == cq_engine.__all__


def test_errors_are_one_tree() -> None:
    errors = [getattr(cq_engine, n) for n in cq_engine.__all__ if n.endswith("Error")]
    assert len(errors) >= 12
    assert all(issubclass(each, cq_engine.CQError) for each in errors)
