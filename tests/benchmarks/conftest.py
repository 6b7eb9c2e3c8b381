"""Benchmarks as modules: they import each other, and the shop of the examples, as scripts do."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

for folder in ("benchmarks", "examples"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))
