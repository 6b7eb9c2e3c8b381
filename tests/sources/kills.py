"""The end of a process, in tests of captures."""

from __future__ import annotations

import pytest

from cq_engine import Engine
from cq_engine.core import faults


class Killed(BaseException):
    """In the place of a process that ends."""


def killed_in_refresh(
    engine: Engine, point: str, monkeypatch: pytest.MonkeyPatch, capture: str = "c"
) -> None:
    """A refresh of a capture that ends at a fault point."""

    def kill(name: str, *_: object) -> None:
        if name == point:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", kill)
        with pytest.raises(Killed):
            engine.capturing.refresh(capture)
