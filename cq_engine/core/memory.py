"""How much memory there is for this process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["memory_bytes"]

_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int:
    """The machine's memory, or the control group's limit where that is less (containers); 4 GiB where neither is told."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not POSIX
        return 4 * 2**30
    for limit in _GROUP_LIMITS:
        try:
            total = min(total, int(limit.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no control groups, or no limit ("max")
            continue
    return total
