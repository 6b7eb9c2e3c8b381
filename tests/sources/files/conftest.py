"""A warehouse, and a directory into which others write files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cq_engine import Engine
from tests.sources.files.inbox import LOW


@pytest.fixture
def opened(opened: Callable[..., Engine]) -> Callable[[], Engine]:
    return partial(opened, LOW)


@pytest.fixture
def engine(opened: Callable[..., Engine]) -> Engine:
    return opened()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path
