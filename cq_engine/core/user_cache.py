"""Where on a machine things are kept that could be made again, for the account that makes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_cache_path

__all__ = ["cache_directory"]


def cache_directory(environ: Mapping[str, str] | None = None) -> Path | None:
    """CQ_CACHE_DIR, else `cq-engine` in the user's directory for caches; None where the user has no home."""
    environ = os.environ if environ is None else environ
    if environ.get("CQ_CACHE_DIR"):
        return Path(environ["CQ_CACHE_DIR"]).expanduser().absolute()
    try:
        found = user_cache_path("cq-engine", appauthor=False)
    except RuntimeError:
        return None
    return found if found.is_absolute() else None  # earlier releases of platformdirs do not raise
