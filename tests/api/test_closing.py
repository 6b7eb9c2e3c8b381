"""Closing an engine: what goes wrong is said, and the warehouse is given back all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import cq_engine
from cq_engine.core.errors import StorageError


@pytest.mark.parametrize("part", ["publisher.publish", "delivery.stop", "catalog.storage_of"])
def test_trouble_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    engine = cq_engine.connect(tmp_path / "w", scheduler=False)
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY)")
    owner, name = part.split(".")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(engine, owner), name, fail)
        with pytest.raises(StorageError, match="the disk is full"):
            engine.close()
    engine.close()
    cq_engine.connect(tmp_path / "w", scheduler=False).close()
