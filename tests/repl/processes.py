"""`cq` as a process of its own, over a fake engine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FAKE", "ROOT", "environment"]

FAKE = Path(__file__).with_name("fake_engine.py")
ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    return {**os.environ, "PYTHONPATH": path, "TERM": "xterm", **more}
